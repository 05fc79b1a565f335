// A client of graphtide's query protocol, written from docs/protocol.md: MessagePack-RPC on a socket, no packages.

import { EventEmitter } from "node:events";
import net from "node:net";
import { decode, encode, Incomplete } from "./messagepack.mjs";

/** An error of the server; `code` is the promise, `message` and `detail` are for people. */
export class RequestError extends Error {
  constructor({ code, message, detail }) {
    super(message);
    Object.assign(this, { code, detail });
  }
}

/** One connection. Requests are pipelined; notifications are events: `changed`, `ended`. */
export class Client extends EventEmitter {
  #socket;
  #buffer = Buffer.alloc(0);
  #open = new Map();
  #last = -1;
  #over = null;

  /** `address`: `unix:PATH` or `tcp://HOST:PORT`. */
  constructor(address) {
    super();
    const [, path, host, port] = /^(?:unix:(.+)|tcp:\/\/\[?(.+?)\]?:(\d+))$/.exec(address);
    this.#socket = net.connect(path ? { path } : { host, port: Number(port), noDelay: true });
    this.#socket.on("data", (data) => this.#receive(data));
    this.#socket.on("error", (error) => this.#end(error));
    this.#socket.on("close", () => this.#end(new Error("the connection was closed")));
  }

  /** What every connection may begin with, and must where the server asks for a token. */
  hello(token) {
    return this.call("hello", { versions: [1], ...(token === undefined ? {} : { token }) });
  }

  /** The result of a request, as it travels; rejects with a RequestError. */
  call(method, params = {}) {
    const msgid = (this.#last = (this.#last + 1) % 2 ** 32);
    return new Promise((resolve, reject) => {
      if (this.#over) throw this.#over;
      this.#open.set(msgid, { resolve, reject });
      this.#socket.write(encode([0, msgid, method, [params]]));
    });
  }

  close() {
    this.#socket.destroy();
  }

  #receive(data) {
    this.#buffer = Buffer.concat([this.#buffer, data]);
    let start = 0;
    try {
      while (start < this.#buffer.length) {
        const [message, end] = decode(this.#buffer, start);
        start = end;
        this.#take(message);
      }
    } catch (error) {
      if (!(error instanceof Incomplete)) this.#socket.destroy(error);
    }
    this.#buffer = this.#buffer.subarray(start);
  }

  #take([type, ...rest]) {
    if (type === 1) {
      const [msgid, error, result] = rest;
      const waiting = this.#open.get(msgid);
      this.#open.delete(msgid);
      if (error === null) waiting?.resolve(result);
      else waiting?.reject(new RequestError(error));
    } else if (rest[0] === "error") {
      this.#end(new RequestError(rest[1][0])); // the server closes the connection now
    } else {
      queueMicrotask(() => this.emit(rest[0], rest[1][0])); // behind whoever waits for an answer before it
    }
  }

  #end(error) {
    if (this.#over) return;
    this.#over = error;
    for (const { reject } of this.#open.values()) reject(error);
    this.#open.clear();
    queueMicrotask(() => this.emit("end", error));
  }
}

const ARRAYS = {
  "<i8": BigInt64Array, "<u8": BigUint64Array, "<i4": Int32Array, "<u4": Uint32Array,
  "<f8": Float64Array, "<f4": Float32Array, "|u1": Uint8Array, "|b1": Uint8Array,
}; // prettier-ignore

/** A column as a typed array (on the little-endian machines that Node runs on); string ids stay an array. */
export function column(wire) {
  return Array.isArray(wire) ? wire : new ARRAYS[wire.dtype](Uint8Array.from(wire.data).buffer);
}

/** The flags of a bitmap, the lowest bit first; nil is none. */
export function flags(bitmap, n) {
  return Array.from({ length: n }, (_, i) => bitmap !== null && Boolean((bitmap[i >> 3] >> (i & 7)) & 1));
}

/** A column as an array, with null where the bitmap says so. */
export function values(wire, bitmap) {
  const all = Array.from(column(wire));
  const none = flags(bitmap, all.length);
  return all.map((value, i) => (none[i] ? null : value));
}

/** Integer ids as they travel in requests: bytes of a column. */
export function ids(list) {
  return new Uint8Array(BigInt64Array.from(list, BigInt).buffer);
}
