// @ts-check
/** `milepost doctor` through real proxies: it finds what they do, and nothing that they do not. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { binary, Gateway } from "./harness.mjs";
import { caddy, haproxy, nginx, varnish } from "./proxies.mjs";

/** @type {Gateway} */
let gateway;
/** @type {import("./proxies.mjs").Target} */
let target;
before(async () => {
  gateway = await Gateway.start("sqlite");
  const { hostname, port } = new URL(gateway.url);
  target = { host: hostname, port: Number(port) };
});
after(() => gateway?.stop());

/**
 * @param {string} url
 * @param {string} directory where the certificate is that is to be trusted, if there is one
 * @returns {Promise<any>} what it printed, with its exit code
 */
function doctor(url, directory) {
  return new Promise((resolve, reject) => {
    const args = ["doctor", url, "--seconds", "4", "--json"];
    const env = { ...process.env, ...(url.startsWith("https") ? { SSL_CERT_FILE: path.join(directory, "cert.pem") } : {}) };
    execFile(binary, args, { encoding: "utf8", env }, (error, stdout, stderr) => {
      try {
        resolve({ ...JSON.parse(stdout), code: error?.code ?? 0 });
      } catch {
        reject(new Error(`${url}: ${stdout}${stderr}`));
      }
    });
  });
}

/**
 * Each address of a proxy with what is found there: troubles, transport, exit code.
 * @param {Promise<import("./proxies.mjs").Running>} starting
 * @param {Record<string, {troubles: string[], transport: string}>} expected
 * @param {string | null} name
 */
async function finds(starting, expected, name) {
  const proxy = await starting;
  try {
    await Promise.all(Object.entries(expected).map(async ([address, { troubles, transport }]) => {
      const found = await doctor(proxy.urls[address], proxy.directory);
      const codes = found.troubles.map((/** @type {any} */ { code }) => code);
      assert.deepEqual([codes, found.transport, found.intermediary], [troubles, transport, name], JSON.stringify(found));
      assert.equal(found.http_version, address === "https" ? "HTTP/2.0" : "HTTP/1.1");
      assert.equal(found.code, troubles.length > 0 ? 1 : 0);
      for (const { remedies } of found.troubles) {
        assert.ok(remedies.some((/** @type {string} */ line) => line.startsWith(`${name}: `)), JSON.stringify(remedies));
      }
    }));
  } finally {
    await proxy.stop();
  }
}

describe("the doctor finds", { concurrency: 2 }, () => {
  test("nginx: buffering only where the gateway's word is ignored; gzip; its own Host, until it is told", () =>
    finds(nginx(target), {
      http: { troubles: ["host_rewritten"], transport: "stream" },
      "http gzip": { troubles: ["compressed", "host_rewritten"], transport: "stream" },
      "http deaf": { troubles: ["held", "host_rewritten"], transport: "long-poll" },
      "http told": { troubles: [], transport: "stream" },
      https: { troubles: ["host_rewritten"], transport: "stream" },
    }, "nginx"));

  test("HAProxy: nothing, and no name", () => finds(haproxy(target), { http: { troubles: [], transport: "stream" } }, null));

  test("Varnish: nothing", () => finds(varnish(target), { http: { troubles: [], transport: "stream" } }, "Varnish"));

  test("Caddy: nothing, until it encodes streams too", () =>
    finds(caddy(target), {
      http: { troubles: [], transport: "stream" },
      "http encode": { troubles: ["compressed", "buffered"], transport: "long-poll" },
      "http told": { troubles: [], transport: "stream" },
    }, "Caddy"));
});
