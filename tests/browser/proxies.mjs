// @ts-check
/**
 * What stands between a browser and the gateway elsewhere: the web servers of Debian as their packages behave, each with
 * no more configuration than it takes to pass everything on and to run here; and relays of our own that behave worse
 * than any of them. All listen on loopback, on ports that were free, and are ended by their process id.
 */
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { access, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { eventually } from "./harness.mjs";

const run = promisify(execFile);

/**
 * @typedef {{host: string, port: number}} Target the gateway behind
 * @typedef {{urls: Record<string, string>, directory: string, stop: () => Promise<void>}} Running its addresses, by what is
 *   special there, and where its files are
 */

/** @type {Set<import("node:child_process").ChildProcess>} */
const children = new Set();
process.on("exit", () => children.forEach((child) => child.kill("SIGKILL")));

/** @param {string} name Debian keeps servers out of the PATH of users */
async function program(name) {
  for (const directory of [...(process.env.PATH ?? "").split(":"), "/usr/sbin", "/usr/local/sbin"]) {
    const file = path.join(directory, name);
    if (await access(file).then(() => true, () => false)) return file;
  }
  throw new Error(`there is no ${name}: run \`tests/run.sh browser\`, which installs it`);
}

/** @param {number} count */
async function freePorts(count) {
  const servers = Array.from({ length: count }, () => net.createServer());
  const listening = servers.map((server) => once(server.listen(0, "127.0.0.1"), "listening"));
  await Promise.all(listening);
  const ports = servers.map((server) => /** @type {net.AddressInfo} */ (server.address()).port);
  await Promise.all(servers.map((server) => new Promise((done) => server.close(done))));
  return ports;
}

/** @param {number} port */
async function accepts(port) {
  const socket = net.connect(port, "127.0.0.1");
  try {
    await once(socket, "connect");
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}

/**
 * Starts a server in a directory of its own. A port that was free may be taken when it binds it: then others are tried.
 * @param {string} name
 * @param {string[]} addresses `http` or `https` of each of its ports, with a name: `http gzip`
 * @param {(directory: string, ports: number[]) => Promise<string[]> | string[]} configure its arguments
 * @returns {Promise<Running>}
 */
async function serve(name, addresses, configure) {
  const file = await program(name);
  for (let tries = 1; ; tries += 1) {
    const directory = await mkdtemp(path.join(tmpdir(), "milepost-proxy-"));
    const ports = await freePorts(addresses.length);
    const args = await configure(directory, ports);
    const env = { ...process.env, HOME: directory, XDG_DATA_HOME: directory, XDG_CONFIG_HOME: directory };
    const child = spawn(file, args, { cwd: directory, env, stdio: ["ignore", "pipe", "pipe"] });
    children.add(child);
    let said = "";
    for (const output of [child.stdout, child.stderr]) {
      output.setEncoding("utf8").on("data", (text) => (said = (said + text).slice(-4000)));
    }
    const gone = new Promise((resolve) => child.once("close", resolve)).then(() => children.delete(child));
    const stop = async () => {
      child.kill("SIGTERM");
      const timer = setTimeout(() => child.kill("SIGKILL"), 5_000);
      await gone;
      clearTimeout(timer);
      await rm(directory, { recursive: true, force: true });
    };
    const isUp = await eventually(async () => {
      if (!children.has(child)) return "gone";
      return (await Promise.all(ports.map(accepts))).every(Boolean) && "up";
    }, 20_000).catch(() => "silent");
    if (isUp === "up") {
      const url = (/** @type {string} */ address, /** @type {number} */ at) =>
        /** @type {const} */ ([address, `${address.split(" ")[0]}://127.0.0.1:${ports[at]}`]);
      return { urls: Object.fromEntries(addresses.map(url)), directory, stop };
    }
    await stop();
    if (tries === 3) throw new Error(`${name} did not start (${isUp})\n${said}`);
  }
}

/** What the README tells to write, with other addresses in it. @param {string} language @param {Target} target */
async function advice(language, { host, port }) {
  const readme = await readFile(new URL("../../README.md", import.meta.url), "utf8");
  const [, behind = ""] = readme.split("## Behind a proxy");
  const [, block] = new RegExp(`\`\`\`${language}\n([^]*?)\`\`\``).exec(behind) ?? [];
  assert.ok(block?.includes("127.0.0.1:8080"), `the README has advice in ${language}`);
  return block.replaceAll("127.0.0.1:8080", `${host}:${port}`);
}

/**
 * nginx: buffers answers and speaks HTTP/1.0 to what is behind it, as by default; once with gzip for whatever it can be
 * had for, once deaf to the gateway's wish not to be buffered, once as the README says, once with TLS and HTTP/2.
 * @param {Target} target
 */
export function nginx({ host, port }) {
  const told = advice("nginx", { host, port });
  return serve("nginx", ["http", "http gzip", "http deaf", "http told", "https"], async (directory, ports) => {
    const [plain, gzip, deaf, advised, tls] = ports;
    const certificate = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
      "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"];
    await run("openssl", ["req", ...certificate], { cwd: directory });
    const location = `location / { proxy_pass http://${host}:${port}; }`;
    const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((of) => `${of}_temp_path ${directory}/${of};`);
    await writeFile(path.join(directory, "nginx.conf"), `
      daemon off; pid ${directory}/nginx.pid; error_log stderr; ${process.getuid?.() === 0 ? "user root;" : ""}
      events {}
      http {
        access_log off; ${temporary.join(" ")}
        server { listen 127.0.0.1:${plain}; ${location} }
        server { listen 127.0.0.1:${gzip}; gzip on; gzip_types *; gzip_proxied any; ${location} }
        server { listen 127.0.0.1:${deaf}; proxy_ignore_headers X-Accel-Buffering; ${location} }
        server { listen 127.0.0.1:${advised}; gzip on; ${await told} }
        server { listen 127.0.0.1:${tls} ssl http2; gzip on; ${location}
          ssl_certificate ${directory}/cert.pem; ssl_certificate_key ${directory}/key.pem; }
      }`);
    return ["-e", "stderr", "-p", directory, "-c", path.join(directory, "nginx.conf")];
  });
}

/**
 * HAProxy, with the time limits of Debian's own configuration (it knows none by itself, and warns).
 * @param {Target} target
 */
export function haproxy({ host, port }) {
  return serve("haproxy", ["http"], async (directory, [own]) => {
    await writeFile(path.join(directory, "haproxy.cfg"), `
defaults
  mode http
  timeout connect 5000
  timeout client 50000
  timeout server 50000
listen milepost
  bind 127.0.0.1:${own}
  server gateway ${host}:${port}
`);
    return ["-db", "-f", path.join(directory, "haproxy.cfg")];
  });
}

/**
 * Varnish with its built-in rules.
 * @param {Target} target
 */
export function varnish({ host, port }) {
  return serve("varnishd", ["http"], async (directory, [own]) => {
    const work = path.join(directory, "work");
    await mkdir(work);
    const unprivileged = ["-j", "none", "-T", "none", "-s", "default,16m", "-p", "vsl_space=4m"];
    return ["-F", "-a", `127.0.0.1:${own}`, "-b", `${host}:${port}`, "-n", work, ...unprivileged];
  });
}

/**
 * Caddy; once with `encode`, which compresses text, once as the README says.
 * @param {Target} target
 */
export function caddy({ host, port }) {
  const told = advice("caddy", { host, port });
  return serve("caddy", ["http", "http encode", "http told"], async (directory, [plain, encode, advised]) => {
    await writeFile(path.join(directory, "Caddyfile"), `
{
  admin off
  auto_https off
}
http://127.0.0.1:${plain} {
  reverse_proxy ${host}:${port}
}
http://127.0.0.1:${encode} {
  encode gzip
  reverse_proxy ${host}:${port}
}
http://127.0.0.1:${advised} {
  ${await told}
}
`);
    return ["run", "--adapter", "caddyfile", "--config", path.join(directory, "Caddyfile")];
  });
}

/** A relay of our own. */
export class Relay {
  url = "";
  /** Answers that it ended by force. */
  cuts = 0;
  #server;

  /**
   * @param {Target} target
   * @param {{hold?: boolean, limitMs?: number}} vice `hold`: passes nothing on until an answer has ended; `limitMs`: the
   *   longest that any answer may take
   */
  constructor({ host, port }, { hold = false, limitMs }) {
    this.#server = http.createServer((request, response) => {
      const { method, url, headers } = request;
      const forward = http.request({ host, port, method, path: url, headers, agent: false }, (answer) => {
        /** @type {Buffer[]} */
        const held = [];
        const begin = () => response.writeHead(answer.statusCode ?? 502, answer.headers);
        if (!hold) begin().flushHeaders();
        answer.on("data", (chunk) => (hold ? held.push(chunk) : response.write(chunk)));
        answer.on("end", () => (hold ? begin().end(Buffer.concat(held)) : response.end()));
        answer.on("error", () => response.destroy());
      });
      forward.on("error", () => response.destroy());
      const timer = setTimeout(() => {
        this.cuts += 1;
        response.destroy();
      }, limitMs ?? 2 ** 31 - 1);
      response.on("close", () => {
        clearTimeout(timer);
        forward.destroy();
      });
      request.pipe(forward);
    });
  }

  /**
   * @param {Target} target
   * @param {{hold?: boolean, limitMs?: number}} vice
   */
  static async before(target, vice) {
    const relay = new Relay(target, vice);
    relay.#server.listen(0, "127.0.0.1");
    await once(relay.#server, "listening");
    relay.url = `http://127.0.0.1:${/** @type {net.AddressInfo} */ (relay.#server.address()).port}`;
    return relay;
  }

  async stop() {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

/**
 * The log is what was seen: from the document that came first, each event once, in order.
 * @param {number[]} snapshots the seqs of the documents that came
 * @param {[number, number][]} covered first and last seq of each event as it came; neighbouring output may come joined
 * @param {number} last the seq of the log's last event
 */
export function assertOnce(snapshots, covered, last) {
  assert.equal(snapshots.length, 1, `documents at ${snapshots}`);
  let [at] = snapshots;
  for (const [from, to] of covered) {
    assert.equal(from, at + 1, `after ${at} came ${from}–${to}, of ${JSON.stringify(covered)}`);
    at = to;
  }
  assert.equal(at, last);
}
