//! The measure of fan-out: a process that does nothing but one write per reader and event.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt;

use crate::server::{cpu_of, pin};

/// The child: takes `readers` connections, then writes ten events a second to each.
pub fn write_for_ever(readers: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    println!("{}", listener.local_addr().expect("an address"));
    let bytes = vec![b'x'; std::env::var("BYTES").expect("a size").parse().expect("a number")];
    let mut sockets: Vec<TcpStream> = (0..readers).map(|_| listener.accept().expect("a reader").0).collect();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        for socket in &mut sockets {
            if socket.write_all(&bytes).is_err() {
                return;
            }
        }
    }
}

/// CPU seconds per million deliveries of `bytes` each.
pub async fn cpu_per_million(readers: usize, time: Duration, bytes: usize) -> f64 {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["bare-writer", &readers.to_string()])
        .env("BYTES", bytes.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts again");
    pin(child.id(), 0);
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("an address");
    let mut counters = Vec::new();
    for _ in 0..readers {
        let mut socket = tokio::net::TcpStream::connect(line.trim()).await.expect("it accepts");
        counters.push(tokio::spawn(async move {
            let (mut buffer, mut total) = (vec![0; 4096], 0);
            while let Ok(read @ 1..) = socket.read(&mut buffer).await {
                total += read;
            }
            total
        }));
    }
    let cpu = cpu_of(child.id());
    tokio::time::sleep(time).await;
    let cpu = cpu_of(child.id()) - cpu;
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let mut total = 0;
    for counter in counters {
        total += counter.await.expect("a counter does not panic");
    }
    cpu.as_secs_f64() / (total / bytes) as f64 * 1e6
}
