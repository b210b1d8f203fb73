// Reads what kvsim/report/page/pack.py writes.

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const { readable, writable } = new DecompressionStream("deflate");
  const writer = writable.getWriter();
  writer.write(packed);
  writer.close();
  const chunks = [];
  let size = 0;
  for (const reader = readable.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
    size += value.length;
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}

/** Differences as variable-length bytes, folded to positive numbers; doubles hold times beyond 2^31. */
async function unpackInts(text) {
  const bytes = await inflate(text);
  const found = [];
  let value = 0;
  for (let at = 0; at < bytes.length; ) {
    let folded = 0;
    let scale = 1;
    for (;;) {
      const byte = bytes[at++];
      folded += (byte & 127) * scale;
      if (byte < 128) break;
      scale *= 128;
    }
    value += folded % 2 ? -(folded + 1) / 2 : folded / 2;
    found.push(value);
  }
  return Float64Array.from(found);
}

async function unpackAll(packed) {
  const columns = Object.entries(packed).filter(([, value]) => typeof value === "string" && value);
  const read = await Promise.all(columns.map(([, text]) => unpackInts(text)));
  return { ...packed, ...Object.fromEntries(columns.map(([name], k) => [name, read[k]])) };
}
