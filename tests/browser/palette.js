// The pixels of a picture (PNG in base64) as numbers of at most 256 colours: the commonest and those that differ most, or the nearest of them.
async (png) => {
  const bytes = Uint8Array.from(atob(png), (each) => each.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const { data } = canvas.getImageData(0, 0, image.width, image.height);
  const pixels = Uint32Array.from({ length: data.length / 4 }, (_, n) => (data[4 * n] << 16) | (data[4 * n + 1] << 8) | data[4 * n + 2]);
  const counts = new Map();
  for (const each of pixels) counts.set(each, (counts.get(each) ?? 0) + 1);
  const parts = (colour) => [colour >> 16, (colour >> 8) & 255, colour & 255];
  const far = (a, b) => parts(a).reduce((sum, part, n) => sum + (part - parts(b)[n]) ** 2, 0);
  // Half of them are the commonest. The others are those that would be missed most: a few red words are, too.
  const colours = [...counts].sort((a, b) => b[1] - a[1]);
  const commonest = colours.slice(0, 128).map(([colour]) => colour);
  const missed = new Map(colours.map(([colour]) => [colour, Math.min(...commonest.map((each) => far(each, colour)))]));
  while (commonest.length < Math.min(256, colours.length)) {
    let worst = colours[0];
    for (const each of colours) if (each[1] * missed.get(each[0]) > worst[1] * missed.get(worst[0])) worst = each;
    commonest.push(worst[0]);
    for (const [colour] of colours) missed.set(colour, Math.min(missed.get(colour), far(worst[0], colour)));
  }
  const number = new Map(commonest.map((colour, n) => [colour, n]));
  for (const colour of counts.keys()) {
    if (number.has(colour)) continue;
    let best = 0;
    commonest.forEach((each, n) => (best = far(each, colour) < far(commonest[best], colour) ? n : best));
    number.set(colour, best);
  }
  let text = "";
  for (const each of pixels) text += String.fromCharCode(number.get(each));
  return { width: image.width, height: image.height, colours: commonest.flatMap(parts), pixels: btoa(text) };
}
