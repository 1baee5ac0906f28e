// Colours that people with any kind of colour vision tell apart: Okabe and Ito's eight, then four of Tol's muted ones.
// After twelve they repeat; the key on each badge and the shape on the map tell those apart.

export const PALETTE = [
  "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
  "#f0e442", "#882255", "#44aa99", "#999933", "#6a5acd", "#cc6677",
];
export const NONE = "#7b828e";
export const UNKNOWN = "#b3b8c2";

export const colourOf = (one) => (one ? PALETTE[one.colour % PALETTE.length] : NONE);

/** Red, green and blue, 0 to 255. */
export const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

const light = (colour) => {
  const [r, g, b] = parts(colour).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

/** Black or white, whichever reads better on a colour. */
export const inkOn = (colour) => ((light(colour) + 0.05) ** 2 > 1.05 * 0.05 ? "#111318" : "#ffffff");

/** Paint a badge with the colour and the key of a class; `null` is none of these. */
export function paint(badge, one) {
  const colour = colourOf(one);
  badge.style.setProperty("--colour", colour);
  badge.style.setProperty("--ink", inkOn(colour));
  badge.textContent = one ? (one.key ?? "·").toUpperCase() : "0";
}
