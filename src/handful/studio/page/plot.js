// Points on a canvas, drawn by ourselves: a hundred thousand in a few milliseconds, one shape and colour per class.

/** Which pixels of a square of side 2 r + 1 a shape covers, 0 to 255. */
function stamp(shape, r) {
  const side = 2 * r + 1, mask = new Uint8Array(side * side), fine = 4;
  const inside = [
    (x, y) => x * x + y * y <= 1,
    (x, y) => Math.max(Math.abs(x), Math.abs(y)) <= 0.85,
    (x, y) => Math.abs(x) + Math.abs(y) <= 1.15,
    (x, y) => y <= 0.8 && Math.abs(x) <= (y + 1.1) * 0.58,
    (x, y) => Math.min(Math.abs(x), Math.abs(y)) <= 0.36 && Math.max(Math.abs(x), Math.abs(y)) <= 1,
    (x, y) => y >= -0.8 && Math.abs(x) <= (1.1 - y) * 0.58,
    (x, y) => x * x + y * y <= 1 && x * x + y * y >= 0.3,
  ][shape % 7];
  for (let py = 0; py < side; py++) {
    for (let px = 0; px < side; px++) {
      let hits = 0;
      for (let sy = 0; sy < fine; sy++) for (let sx = 0; sx < fine; sx++) {
        if (inside((px + (sx + 0.5) / fine - r - 0.5) / r, (py + (sy + 0.5) / fine - r - 0.5) / r)) hits++;
      }
      mask[py * side + px] = (255 * hits) / (fine * fine);
    }
  }
  return mask;
}

const stamps = new Map();
function stampFor(shape, r) {
  const key = shape % 7 * 64 + r;
  if (!stamps.has(key)) stamps.set(key, stamp(shape, r));
  return stamps.get(key);
}

export class Plot {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }
  resize(width, height, ratio) {
    this.ratio = ratio;
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
  }
  clear() {
    this.image.data.fill(0);
  }
  /** Stamp one point; x and y in CSS pixels, colour as [r, g, b], strength 0 to 1. */
  point(x, y, r, shape, [red, green, blue], strength) {
    const { width, height, data } = this.image, radius = Math.max(1, Math.round(r * this.ratio));
    const mask = stampFor(shape, radius), side = 2 * radius + 1;
    const left = Math.round(x * this.ratio) - radius, top = Math.round(y * this.ratio) - radius;
    if (left + side < 0 || top + side < 0 || left >= width || top >= height) return;
    for (let py = Math.max(0, -top); py < side && top + py < height; py++) {
      for (let px = Math.max(0, -left); px < side && left + px < width; px++) {
        const cover = mask[py * side + px] * strength;
        if (cover < 1) continue;
        const at = 4 * ((top + py) * width + left + px);
        if (cover >= 254 || !data[at + 3]) {
          data[at] = red;
          data[at + 1] = green;
          data[at + 2] = blue;
          data[at + 3] = cover;
          continue;
        }
        const over = cover / 255, under = (data[at + 3] / 255) * (1 - over), all = over + under;
        data[at] = (red * over + data[at] * under) / all;
        data[at + 1] = (green * over + data[at + 1] * under) / all;
        data[at + 2] = (blue * over + data[at + 2] * under) / all;
        data[at + 3] = 255 * all;
      }
    }
  }
  show() {
    this.context.putImageData(this.image, 0, 0);
  }
}

/** Whether a point lies within a polygon [[x, y], ...]. */
export function within(x, y, polygon) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i], [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}
