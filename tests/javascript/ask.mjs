// node ask.mjs ADDRESS: the client on standard input and output.
// In, a line each: [name, method, params]. Out, as they come: [name, error, meaning], [notification, content],
// and ["end", code] (null where the server did not say why).
import readline from "node:readline";
import { Client } from "./client.mjs";
import { fromJson, meaning, toJson } from "./notation.mjs";

const say = (...line) => console.log(JSON.stringify(line.map(toJson)));
const client = new Client(process.argv[2]);
for (const name of ["changed", "ended"]) client.on(name, (content) => say(name, meaning(content)));
client.on("end", (error) => say("end", error.code ?? null));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [name, method, params] = fromJson(JSON.parse(line));
  client.call(method, params).then(
    (result) => say(name, null, meaning(result)),
    ({ code, message, detail }) => say(name, { code, message, detail }, null),
  );
}
client.close();
