// node vectors.mjs PAGE: reads and writes every example of docs/protocol-vectors.json, and says how many there were.

import assert from "node:assert/strict";
import fs from "node:fs";
import { decode, encode } from "./messagepack.mjs";
import { fromJson, meaning, toJson } from "./notation.mjs";

const page = JSON.parse(fs.readFileSync(process.argv[2]));
const counts = { decoded: 0, encoded: 0, meanings: 0 };

function decodes(hex, shown) {
  const bytes = Buffer.from(hex, "hex");
  const [value, end] = decode(bytes);
  assert.equal(end, bytes.length);
  assert.deepEqual(value, fromJson(shown));
  counts.decoded += 1;
  return value;
}

function encodes(shown, hex) {
  assert.equal(encode(fromJson(shown)).toString("hex"), hex);
  counts.encoded += 1;
}

function means(content, shown) {
  const { epoch, offsets, ...answer } = content;
  assert.ok(epoch[0] > 0 && Object.keys(offsets).length > 0);
  assert.deepEqual(toJson(meaning(answer)), shown);
  counts.meanings += 1;
}

for (const example of page.queries) {
  decodes(example.request_bytes, example.request);
  encodes(example.request, example.request_bytes);
  const response = decodes(example.response_bytes, example.response);
  if (example.means) means(response[3], example.means);
}
for (const example of page.subscriptions) {
  encodes(example.request, example.request_bytes);
  const messages = example.messages_bytes.map((hex, i) => decodes(hex, example.messages[i]));
  messages.slice(1).forEach(([, , [content]], i) => means(content, example.means[i]));
}
for (const record of page.records.filter(({ message }) => message)) {
  decodes(record.value, record.message);
  encodes(record.message, record.value);
}
console.log(JSON.stringify(counts));
