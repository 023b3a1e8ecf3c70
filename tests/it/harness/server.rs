//! The real binary as a child process, on either store.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::{OnceCell, oneshot};

use super::{Request, eventually};

/// Where a server keeps its jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Store {
    Sqlite,
    Postgres,
}

impl Store {
    /// The server that tests share which need no flags: jobs do not know of each other.
    pub async fn shared(self) -> Server {
        static SHARED: [OnceCell<Server>; 2] = [const { OnceCell::const_new() }; 2];
        SHARED[self as usize].get_or_init(|| self.serve(&[])).await.clone()
    }

    /// A server of the test's own, with flags added to `serve`.
    pub async fn serve(self, flags: &[&str]) -> Server {
        self.serve_in(&[], flags).await
    }

    /// As [`Store::serve`], with these variables in its environment.
    pub async fn serve_in(self, environment: &[(&str, &Path)], flags: &[&str]) -> Server {
        let database = match self {
            Self::Sqlite => None,
            Self::Postgres => Some(Arc::new(Database::create().await)),
        };
        let setup = Setup {
            directory: Directory::create(),
            flags: flags.iter().map(|flag| flag.to_string()).collect(),
            environment: environment.iter().map(|(name, value)| (name.to_string(), value.to_path_buf())).collect(),
            database,
        };
        setup.serve().await
    }
}

impl Server {
    /// One more node on this server's database. It must go before the database does.
    pub async fn beside(&self) -> Self {
        let database = self.setup.database.as_ref().expect("only Postgres has room for several nodes");
        let flags = [&self.setup.flags[..], &["--database-url".to_owned(), database.url.clone()]].concat();
        let setup = Setup {
            directory: Directory::create(),
            database: None,
            flags,
            environment: self.setup.environment.clone(),
        };
        let process = setup.start(0).await.unwrap_or_else(|error| panic!("the second node did not start: {error}"));
        Self(Arc::new(Inner { setup, process: Mutex::new(process) }))
    }
}

/// A running server. It is killed with the last handle, and by the kernel when this process ends.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

pub struct Inner {
    pub setup: Setup,
    process: Mutex<Process>,
}

impl Deref for Server {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    pub fn address(&self) -> SocketAddr {
        self.lock().address
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.lock().child.id() as i32)
    }

    pub fn request(&self, method: &str, path: &str) -> Request {
        Request::new(self.address(), method, path)
    }

    pub fn get(&self, path: &str) -> Request {
        self.request("GET", path)
    }

    pub fn post(&self, path: &str) -> Request {
        self.request("POST", path)
    }

    pub fn sigterm(&self) {
        kill(self.pid(), Signal::SIGTERM).expect("our child takes a signal");
    }

    /// Ends the process as a power cut would end it.
    pub fn kill9(&self) {
        let mut process = self.lock();
        process.child.kill().expect("our child can be killed");
        process.child.wait().expect("our child can be waited for");
    }

    /// Starts the binary again on the same store, at the same address if nobody has taken it.
    pub async fn restart(&self) {
        let port = self.address().port();
        let again = match self.setup.start(port).await {
            Ok(process) => process,
            Err(_) => self.setup.start(0).await.unwrap_or_else(|error| panic!("no restart: {error}")),
        };
        *self.lock() = again;
    }

    /// How the process ended, which it must do within the limit.
    pub async fn exit(&self, limit: Duration) -> ExitStatus {
        eventually(limit, "the end of the process", async || {
            self.lock().child.try_wait().expect("our child can be waited for")
        })
        .await
    }

    /// What the process has printed since its ready line.
    pub fn printed(&self) -> Vec<String> {
        self.lock().stdout.try_iter().collect()
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a live process has a size");
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("VmRSS is in kB");
        kilobytes * 1024
    }

    /// The number of open file descriptors.
    pub fn descriptors(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a live process has descriptors");
        open.count()
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid())).expect("a live process has a /proc entry")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The log belongs to the report of a failed test, once, whether its server is shared or not.
        if thread::panicking() && !SHOWN.replace(true) {
            eprintln!("--- end of the server's log ---\n{}", self.setup.directory.log_tail());
        }
    }
}

thread_local! {
    static SHOWN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

struct Process {
    child: Child,
    address: SocketAddr,
    stdout: mpsc::Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

/// What a restart needs: the same store, the same flags.
pub struct Setup {
    pub directory: Directory,
    pub database: Option<Arc<Database>>,
    flags: Vec<String>,
    environment: Vec<(String, PathBuf)>,
}

impl Setup {
    async fn serve(self) -> Server {
        let process = self.start(0).await.unwrap_or_else(|error| panic!("the server did not start: {error}"));
        Server(Arc::new(Inner { setup: self, process: Mutex::new(process) }))
    }

    /// `serve` on this store, without its `--listen`.
    pub fn command(&self) -> Command {
        let mut command = milepost();
        command.arg("serve").arg("--data-dir").arg(self.directory.path());
        command.args(&self.flags).envs(self.environment.iter().cloned());
        if let Some(database) = &self.database {
            command.env("DATABASE_URL", &database.url);
        }
        command
    }

    async fn start(&self, port: u16) -> io::Result<Process> {
        let log = File::options().create(true).append(true).open(self.directory.log())?;
        let mut command = self.command();
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.stdout(Stdio::piped()).stderr(log);
        let mut child = spawn(command).await?;
        let (sender, stdout) = mpsc::channel();
        let (ready, became_ready) = oneshot::channel();
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        thread::spawn(move || {
            let mut lines = lines.map_while(Result::ok);
            let _nobody_waits = ready.send(lines.next());
            lines.for_each(|line| drop(sender.send(line)));
        });
        let line = tokio::time::timeout(Duration::from_secs(20), became_ready).await;
        let address = match &line {
            Ok(Ok(Some(line))) => {
                line.strip_prefix("milepost ready at http://").and_then(|rest| rest.split('/').next()?.parse().ok())
            }
            _ => None,
        };
        let Some(address) = address else {
            let _gone_already = child.kill();
            let _reaped_already = child.wait();
            return Err(io::Error::other(format!("stdout said {line:?}; the log: {}", self.directory.log_tail())));
        };
        Ok(Process { child, address, stdout })
    }
}

/// The binary under test, with nothing of the tester's own environment that could steer it.
pub fn milepost() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milepost"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MILEPOST_")) {
        command.env_remove(name);
    }
    command.env_remove("DATABASE_URL").stdin(Stdio::null());
    command
}

/// Runs a command that must end by itself: how it ended, what it printed, what it said on stderr.
pub async fn run_to_end(mut command: Command) -> (ExitStatus, String, String) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command).await.expect("the binary can be started");
    let exit = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            if let Some(status) = child.try_wait().expect("our child can be waited for") {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let status = exit.await;
    let _gone_already = child.kill();
    let output = child.wait_with_output().expect("its pipes can be read");
    let [printed, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let status = status.unwrap_or_else(|_| panic!("the command goes on and on: {printed}{said}"));
    (status, printed, said)
}

/// Starts children that die with this process. The kernel ties them to the *thread* that made them, and test
/// threads end with their test, so one thread that never ends makes them all.
async fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, oneshot::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                // SAFETY: prctl is async-signal-safe and touches nothing but the new process.
                unsafe {
                    command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?));
                }
                let _nobody_waits = reply.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (reply, answer) = oneshot::channel();
    SPAWNER.lock().expect("no sender panics").send((command, reply)).expect("the spawner never ends");
    answer.await.expect("the spawner answers every order")
}

/// A data directory below cargo's own directory for tests, removed at the end. What a killed run has left behind is
/// removed by the next one.
pub struct Directory(PathBuf);

impl Directory {
    pub fn create() -> Self {
        static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
            let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let of_dead_run = name.strip_prefix("it-").is_some_and(|pid| !Path::new("/proc").join(pid).exists());
                if of_dead_run {
                    let _another_run_was_faster = fs::remove_dir_all(entry.path());
                }
            }
            parent.join(format!("it-{}", std::process::id()))
        });
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let path = ROOT.join(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir_all(&path).expect("cargo's directory for tests can be written");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn log(&self) -> PathBuf {
        self.0.join("stderr.log")
    }

    pub fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let from = log.len().saturating_sub(6000);
        String::from_utf8_lossy(&log[from..]).into_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _removed_by_the_next_run = fs::remove_dir_all(&self.0);
    }
}

/// A database of the test's own on the throw-away cluster.
pub struct Database {
    name: String,
    pub url: String,
}

impl Database {
    async fn create() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        // `create database` copies a template that nobody else may be copying at that moment.
        static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let name = format!("it_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let _turn = ONE_AT_A_TIME.lock().await;
        execute(&maintenance_url(), format!("create database {name}")).await;
        let url = maintenance_url();
        let (place, options) = url.split_once('?').map_or((url.as_str(), None), |(a, b)| (a, Some(b)));
        let (cluster, _) = place.rsplit_once('/').expect("the url names a database");
        let query = options.map(|options| format!("?{options}")).unwrap_or_default();
        Self { url: format!("{cluster}/{name}{query}"), name }
    }

    /// Cuts every connection and lets no new one in, as when the database goes away.
    pub async fn away(&self) {
        execute(&maintenance_url(), format!("alter database {} allow_connections false", self.name)).await;
        let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname";
        execute(&maintenance_url(), format!("{cut} = '{}'", self.name)).await;
    }

    /// Lets connections in again.
    pub async fn back(&self) {
        execute(&maintenance_url(), format!("alter database {} allow_connections true", self.name)).await;
    }

    /// How many connections to this database are open, without the one that asks.
    pub async fn connections(&self) -> i64 {
        let mut connection = PgConnection::connect(&maintenance_url()).await.expect("the cluster answers");
        let count = "select count(*) from pg_stat_activity where datname = $1";
        sqlx::query_scalar(count).bind(&self.name).fetch_one(&mut connection).await.expect("the cluster answers")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let statement = format!("drop database if exists {} with (force)", self.name);
        let url = maintenance_url();
        // A test's own runtime cannot be entered twice.
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime needs nothing but threads").block_on(execute(&url, statement));
        });
        let _the_cluster_goes_anyway = dropping.join();
    }
}

async fn execute(url: &str, statement: String) {
    let mut connection = PgConnection::connect(url).await.expect("the cluster answers");
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await;
    done.expect("the statement is right");
}

fn maintenance_url() -> String {
    std::env::var("MILEPOST_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!("MILEPOST_TEST_POSTGRES is not set: run tests/run.sh, which starts a throw-away Postgres and sets it")
    })
}
