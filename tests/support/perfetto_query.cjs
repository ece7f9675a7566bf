// Loads traces into Perfetto's own trace processor and prints the rows of SQL queries as JSON.
//
//   node perfetto_query.cjs FOLDER
//
// Each line of standard input is a request, [TRACE, SQL, SQL ...], and is answered by a line: {"answers"} or {"error"}.
// Starting takes longer than most traces, so one process answers many, each with the trace processor reset.
//
// FOLDER holds Perfetto's web build (engine_bundle.js and trace_processor*.wasm). The bundle is a web worker: it is
// given just enough of a worker's world to run, and then spoken to in its RPC protocol (length-delimited protobuf).
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const vm = require('node:vm');

const [folder] = process.argv.slice(2);

// ---------------------------------------------------------------------------------------------- protobuf, just enough

function varint(value) {
  const bytes = [];
  do {
    bytes.push((value & 127) | (value > 127 ? 128 : 0));
    value = Math.floor(value / 128);
  } while (value > 0);
  return Buffer.from(bytes);
}

const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);

function readVarint(buffer, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [BigInt.asIntN(64, value), at];
  }
}

// Every field of a message as [number, value]: bigint, 8 bytes, or bytes.
function* fields(buffer) {
  let at = 0;
  while (at < buffer.length) {
    let key, value;
    [key, at] = readVarint(buffer, at);
    const wire = Number(key & 7n);
    if (wire === 0) {
      [value, at] = readVarint(buffer, at);
    } else if (wire === 1) {
      value = buffer.subarray(at, (at += 8));
    } else if (wire === 2) {
      let length;
      [length, at] = readVarint(buffer, at);
      value = buffer.subarray(at, (at += Number(length)));
    } else {
      throw new Error(`unexpected wire type ${wire}`);
    }
    yield [Number(key >> 3n), value];
  }
}

function* packed(buffer) {
  let at = 0;
  while (at < buffer.length) {
    let value;
    [value, at] = readVarint(buffer, at);
    yield value;
  }
}

// ------------------------------------------------------------------------------------------------------- the worker

// The bundle reads its WebAssembly file with a synchronous request.
class XMLHttpRequest {
  open(method, url) {
    this.file = path.join(folder, path.basename(String(url)));
  }
  send() {
    this.response = Uint8Array.from(fs.readFileSync(this.file)).buffer;
    this.status = 200;
  }
}

const world = {
  console: {log() {}, warn() {}, error() {}, info() {}, debug() {}},
  performance, TextDecoder, TextEncoder, setTimeout, clearTimeout, setInterval, clearInterval, queueMicrotask, URL,
  WebAssembly, Uint8Array, Uint32Array, ArrayBuffer, BigInt64Array, BigUint64Array, crypto,
  WorkerGlobalScope: class {},
  location: {href: 'http://localhost/engine_bundle.js'},
  importScripts() {},
  XMLHttpRequest,
  // WebAssembly is this realm's, so what it throws must be what the bundle looks for.
  TypeError,
};
world.self = world;
vm.createContext(world);
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), world);

let replies = Buffer.alloc(0);
let arrived = () => {};
const port = {
  postMessage(data) {
    replies = Buffer.concat([replies, Buffer.from(data)]);
    arrived();
  },
};
world.onmessage({data: port});

// The next whole reply: an element of the stream's field 1.
async function nextReply() {
  for (;;) {
    if (replies.length > 1) {
      const [length, at] = readVarint(replies, 1);
      const end = at + Number(length);
      if (replies.length >= end) {
        const reply = replies.subarray(at, end);
        replies = replies.subarray(end);
        return new Map(fields(reply));
      }
    }
    await new Promise((resolve) => { arrived = resolve; });
  }
}

let sequence = 0;
function send(request, ...rest) {
  const message = bytes(1, Buffer.concat([number(1, sequence++), number(2, request), ...rest]));
  port.onmessage({data: new Uint8Array(message)});
}

const APPEND = 1, FINALIZE = 2, QUERY = 3, RESET = 11;
const fatal = (reply) => {
  if (reply.has(5)) throw new Error(String(reply.get(5)));
  return reply;
};

async function query(sql) {
  send(QUERY, bytes(103, bytes(1, Buffer.from(sql))));
  const names = [], rows = [];
  let row = [];
  for (let last = false; !last;) {
    const reply = fatal(await nextReply());
    for (const [field, value] of fields(reply.get(203))) {
      if (field === 1) names.push(String(value));
      if (field === 2 && value.length > 0) throw new Error(`${sql}: ${value}`);
      if (field !== 3) continue;
      const cells = [], whole = [], real = [];
      let texts = [];
      for (const [part, content] of fields(value)) {
        if (part === 1) cells.push(...packed(content));
        if (part === 2) whole.push(...packed(content));
        if (part === 3) for (let at = 0; at < content.length; at += 8) real.push(content.readDoubleLE(at));
        if (part === 5) texts = content.toString('utf8').split('\0');
        if (part === 6) last = content !== 0n;
      }
      let text = 0, integer = 0, float = 0;
      for (const kind of cells) {
        if (kind === 1n) row.push(null);
        else if (kind === 2n) row.push(Number(whole[integer++]));
        else if (kind === 3n) row.push(real[float++]);
        else if (kind === 4n) row.push(texts[text++]);
        else row.push('<blob>');
        if (row.length === names.length) {
          rows.push(row);
          row = [];
        }
      }
    }
  }
  return {columns: names, rows};
}

async function load(trace) {
  send(RESET);
  fatal(await nextReply());
  const file = fs.readFileSync(trace);
  const part = 8 << 20;
  for (let at = 0; at < file.length; at += part) {
    send(APPEND, bytes(101, file.subarray(at, at + part)));
    const result = fatal(await nextReply()).get(201);
    for (const [field, value] of fields(result ?? Buffer.alloc(0))) {
      if (field === 2) throw new Error(`import failed: ${value}`);
    }
  }
  send(FINALIZE);
  fatal(await nextReply());
}

async function main() {
  await new Promise((resolve) => setTimeout(resolve, 0));
  for await (const line of readline.createInterface({input: process.stdin})) {
    const [trace, ...queries] = JSON.parse(line);
    let reply;
    try {
      await load(trace);
      const answers = [];
      for (const sql of queries) answers.push(await query(sql));
      reply = {answers};
    } catch (error) {
      reply = {error: `${error.stack ?? error}`};
    }
    // A pipe takes 64 KiB at a time, and exiting drops the rest.
    await new Promise((done) => process.stdout.write(`${JSON.stringify(reply)}\n`, done));
    // What an error left unread is nobody's answer.
    if (reply.error) return;
  }
}

main().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack ?? error}\n`);
  process.exit(1);
});
