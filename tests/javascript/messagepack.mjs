// MessagePack, as far as graphtide's protocol needs it: all but extension types.
// Integers that a number cannot hold exactly are BigInt; a map with a key that is no string is a Map.

/** What bytes end before it is complete. */
export class Incomplete extends Error {}

/** The bytes of a value; numbers without a fraction travel as integers. */
export function encode(value) {
  const pieces = [];
  write(value, pieces);
  return Buffer.concat(pieces);
}

function write(value, out) {
  if (value === null || value === undefined) out.push(Buffer.of(0xc0));
  else if (typeof value === "boolean") out.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "bigint" || Number.isSafeInteger(value)) out.push(integer(BigInt(value)));
  else if (typeof value === "number") {
    const bytes = Buffer.of(0xcb, 0, 0, 0, 0, 0, 0, 0, 0);
    bytes.writeDoubleBE(value, 1);
    out.push(bytes);
  } else if (typeof value === "string") {
    const bytes = Buffer.from(value);
    out.push(bytes.length < 32 ? Buffer.of(0xa0 | bytes.length) : length(bytes.length, 0xd9, 0xda, 0xdb), bytes);
  } else if (value instanceof Uint8Array) out.push(length(value.length, 0xc4, 0xc5, 0xc6), value);
  else if (Array.isArray(value)) {
    out.push(value.length < 16 ? Buffer.of(0x90 | value.length) : length(value.length, null, 0xdc, 0xdd));
    for (const item of value) write(item, out);
  } else {
    const entries = value instanceof Map ? [...value] : Object.entries(value);
    out.push(entries.length < 16 ? Buffer.of(0x80 | entries.length) : length(entries.length, null, 0xde, 0xdf));
    for (const entry of entries) entry.forEach((item) => write(item, out));
  }
}

function length(n, code8, code16, code32) {
  const [code, size] = code8 !== null && n < 2 ** 8 ? [code8, 1] : n < 2 ** 16 ? [code16, 2] : [code32, 4];
  const bytes = Buffer.alloc(1 + size, code);
  bytes.writeUIntBE(n, 1, size);
  return bytes;
}

function integer(n) {
  if (n >= -32n && n < 128n) return Buffer.of(Number(BigInt.asUintN(8, n)));
  let power = 0; // the size is 2^power bytes
  while (power < 3 && (n < 0n ? n < -(1n << BigInt((8 << power) - 1)) : n >> BigInt(8 << power))) power += 1;
  const bytes = Buffer.alloc(9, (n < 0n ? 0xd0 : 0xcc) + power);
  if (n < 0n) bytes.writeBigInt64BE(n, 1);
  else bytes.writeBigUInt64BE(n, 1);
  return Buffer.concat([bytes.subarray(0, 1), bytes.subarray(9 - (1 << power))]);
}

/** The value that begins at `start`, and where it ends. Throws Incomplete. */
export function decode(bytes, start = 0) {
  let at = start;
  const take = (n) => {
    if (at + n > bytes.length) throw new Incomplete();
    at += n;
    return bytes.subarray(at - n, at);
  };
  const unsigned = (size) => (size === 8 ? plain(take(8).readBigUInt64BE()) : take(size).readUIntBE(0, size));
  const signed = (size) => (size === 8 ? plain(take(8).readBigInt64BE()) : take(size).readIntBE(0, size));
  const text = (n) => take(n).toString();
  const array = (n) => {
    const items = [];
    while (items.length < n) items.push(next());
    return items;
  };
  const map = (n) => {
    const entries = array(2 * n).flatMap((item, i, all) => (i % 2 ? [] : [[item, all[i + 1]]]));
    return entries.every(([key]) => typeof key === "string") ? Object.fromEntries(entries) : new Map(entries);
  };
  const next = () => {
    const code = take(1)[0];
    if (code < 0x80) return code;
    if (code < 0x90) return map(code & 0x0f);
    if (code < 0xa0) return array(code & 0x0f);
    if (code < 0xc0) return text(code & 0x1f);
    if (code >= 0xe0) return code - 0x100;
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code >= 0xc4 && code <= 0xc6) return take(unsigned(1 << (code - 0xc4)));
    if (code === 0xca) return take(4).readFloatBE();
    if (code === 0xcb) return take(8).readDoubleBE();
    if (code >= 0xcc && code <= 0xcf) return unsigned(1 << (code - 0xcc));
    if (code >= 0xd0 && code <= 0xd3) return signed(1 << (code - 0xd0));
    if (code >= 0xd9 && code <= 0xdb) return text(unsigned(1 << (code - 0xd9)));
    if (code === 0xdc || code === 0xdd) return array(unsigned(code === 0xdc ? 2 : 4));
    if (code === 0xde || code === 0xdf) return map(unsigned(code === 0xde ? 2 : 4));
    throw new Error(`0x${code.toString(16)} is not used by this protocol`);
  };
  return [next(), at];
}

function plain(n) {
  const number = Number(n);
  return Number.isSafeInteger(number) ? number : n;
}
