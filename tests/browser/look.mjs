// Looks at a page with Chromium, as a person would: on a wide and a narrow screen, light and dark.
//
// Usage: node look.mjs URL [FOLDER]    prints what was seen as JSON; screenshots go to the folder
import { chromium } from 'playwright-core';

const [url, folder] = process.argv.slice(2);
const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
// Its sandbox can't be had by root, as whom the tests run.
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });

// Runs in the page.
function see() {
  const text = (element) => element.innerText.trim();
  const all = (selector) => [...document.querySelectorAll(selector)];
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = channels(colour).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (element) => {
    const [dark, light] = [ground, luminance(getComputedStyle(element).color)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  return {
    title: document.title,
    heading: text(document.querySelector('h1')),
    obstacles: all('ul li').map(text),
    facts: all('dl div').map((fact) => [...fact.children].map(text)),
    columns: all('thead th').map((column) => column.textContent),
    rows: all('tbody tr').map((row) => [...row.children].map(text)),
    isDark: ground < 0.5,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    contrastMin: Math.min(...all('h1, .state, h2, li, dt, dd, th, td').map(contrast)),
    smallest: Math.min(...all('li, dt, dd, td').map((element) => parseFloat(getComputedStyle(element).fontSize))),
  };
}

const looks = [];
for (const colorScheme of ['light', 'dark']) {
  for (const width of [1280, 360]) {
    const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
    const page = await context.newPage();
    const [complaints, requests] = [[], []];
    page.on('console', (message) => complaints.push(message.text()));
    page.on('pageerror', (error) => complaints.push(String(error)));
    page.on('requestfailed', (request) => complaints.push(`${request.url()} failed`));
    page.on('request', (request) => requests.push(request.url()));
    await page.goto(url, { waitUntil: 'load' });
    looks.push({ colorScheme, width, complaints, requests, ...(await page.evaluate(see)) });
    const name = `${await page.title()} ${colorScheme} ${width}`.replace(/\W+/g, '-');
    if (folder) await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
    await context.close();
  }
}
console.log(JSON.stringify(looks));
await browser.close();
