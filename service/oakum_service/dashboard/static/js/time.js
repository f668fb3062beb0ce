// The service's time: a browser's clock may be hours off, and all that is shown is dated by the service.

const CLOCKS_AGREE_S = 3;
let skewS = 0;

/** Seconds since 1970 on the service's clock. */
export const serviceNow = () => Date.now() / 1000 + skewS;

/** Takes the service's clock from the header `Date` of an answer; differences of a few seconds count as none. */
export function setClock(date) {
  const told = Date.parse(date ?? "");
  const ahead = Number.isNaN(told) ? 0 : (told - Date.now()) / 1000;
  skewS = Math.abs(ahead) > CLOCKS_AGREE_S ? ahead : 0;
}
