// OpenAI's SDK for Node against /v1/files: `node files.mjs BASE_URL PATH` does what its users do with the file at PATH,
// and prints what it got as JSON.
import { createReadStream, readFileSync } from 'node:fs';
import { Readable } from 'node:stream';
import OpenAI, { toFile, toStreamingFile } from 'openai';

const [baseURL, path] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: 'any', maxRetries: 0 });
const bytes = readFileSync(path);

async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, code: error.code, message: error.message };
  }
  return null;
}

async function* pieces() {
  for (let at = 0; at < bytes.length; at += 1000) yield bytes.subarray(at, at + 1000);
}

const purpose = 'vision';
const uploads = {
  path: { file: createReadStream(path), purpose },
  bytes: { file: await toFile(bytes), purpose },
  // The file before its purpose is what SDKs send of an object written in this order.
  named: { file: await toFile(bytes, 'a "quoted" ünïcode.png', { type: 'image/png' }), purpose },
  stream: { purpose, file: toStreamingFile(Readable.from(pieces()), 'pieces.bin') },
  web: { purpose, file: new File([bytes], 'web.txt', { type: 'text/plain' }) },
  expiring: { file: await toFile(bytes, 'e.txt'), purpose, expires_after: { anchor: 'created_at', seconds: 3600 } },
};
const created = {};
for (const [how, body] of Object.entries(uploads)) created[how] = await client.files.create(body);

const first = await client.files.list({ purpose, limit: 2, order: 'asc' });
const listed = [];
for await (const file of client.files.list({ purpose, limit: 2, order: 'asc' })) listed.push(file.id);
const retrieved = await client.files.retrieve(created.named.id);
const content = Buffer.from(await (await client.files.content(created.stream.id)).arrayBuffer());
const deleted = await client.files.delete(created.bytes.id);

console.log(
  JSON.stringify({
    created,
    page: { ids: first.data.map((file) => file.id), hasMore: first.has_more },
    listed,
    retrieved,
    isWhole: content.equals(bytes),
    deleted,
    missing: await refusal(client.files.retrieve(created.bytes.id)),
    refused: await refusal(client.files.create({ file: await toFile(bytes, 'a.jsonl'), purpose: 'fine-tune' })),
  }),
);
