// What a reader's eyes would find wrong with the page, as a list of texts.
() => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.body.querySelectorAll("*")].filter((each) => {
      return each.getBoundingClientRect().right > root.clientWidth + 1 && !each.closest(".wide");
    });
    const names = wide.slice(-3).map((each) => each.outerHTML.slice(0, 90));
    wrong.push(`the page is ${root.scrollWidth} px wide in ${root.clientWidth}: ${names.join(" | ")}`);
  }

  // Any CSS colour as red, green, blue and alpha.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const known = new Map();
  const parse = (text) => {
    if (!known.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = (above, below) => {
    const a = above[3];
    return [0, 1, 2].map((n) => above[n] * a + below[n] * (1 - a)).concat(1);
  };
  const light = ([r, g, b]) => {
    const linear = [r, g, b].map((n) => n / 255).map((n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const paper = isDark ? [18, 18, 18, 1] : [255, 255, 255, 1];
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const style = getComputedStyle(each);
      layers.push(parse(each instanceof SVGElement && !(each instanceof SVGSVGElement) ? "transparent" : style.backgroundColor));
    }
    if (element instanceof SVGElement) {
      element.scrollIntoView({ block: "center", inline: "center" });
      const box = element.getBoundingClientRect();
      const there = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
      const shapes = there.filter((each) => /^(rect|circle|ellipse|path|polygon)$/.test(each.tagName));
      layers.unshift(...shapes.map((each) => getComputedStyle(each)).map((s) => (s.fill === "none" ? "transparent" : s.fill)).map(parse));
    }
    return layers.reverse().reduce((below, above) => over(above, below), paper);
  };
  const seen = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.data.trim();
    if (!text || seen.has(element) || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("title, option") || element.getBoundingClientRect().width < 2) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    const back = behind(element);
    const front = over(parse(element instanceof SVGElement ? style.fill : style.color), back);
    const [bright, dark] = [light(front), light(back)].sort((a, b) => b - a);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < (isLarge ? 3 : 4.5)) {
      wrong.push(`contrast ${ratio.toFixed(2)}, ${isDark ? "dark" : "light"}: "${text.slice(0, 40)}" in ${element.outerHTML.slice(0, 80)}`);
    }
  }
  for (const each of document.querySelectorAll("input:not([type=hidden]), select, textarea, progress")) {
    const isNamed = each.labels?.length || each.getAttribute("aria-label") || each.getAttribute("aria-labelledby");
    if (!isNamed) wrong.push(`without a label: ${each.outerHTML.slice(0, 80)}`);
  }
  return wrong;
}
