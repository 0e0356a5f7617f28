// Takes a picture of each dashboard: node shoot.mjs BOARDS.json FOLDER, beside board.js and board.css.
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import chromium from '@sparticuz/chromium';
import puppeteer from 'puppeteer-core';

const [boards, folder] = process.argv.slice(2);
const page = path.join(path.dirname(fileURLToPath(import.meta.url)), 'page.html');
fs.writeFileSync(page, `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="board.css">
<style>* { box-sizing: border-box } body { margin: 0 }</style><div id="root"></div><script src="board.js"></script>`);
const browser = await puppeteer.launch({
  args: [...chromium.args, '--no-sandbox'],
  executablePath: await chromium.executablePath(),
  headless: 'shell',
  env: { ...process.env, LANG: 'en_US.UTF-8', LC_ALL: 'en_US.UTF-8', LANGUAGE: 'en_US' },
});
for (const board of JSON.parse(fs.readFileSync(boards, 'utf8'))) {
  const tab = await browser.newPage();
  tab.on('pageerror', (error) => { console.error(`${board.name}: ${error}`); process.exitCode = 1; });
  await tab.setViewport({ width: 1400, height: board.rows * 34 + 64 });
  await tab.evaluateOnNewDocument((value) => { window.BOARD = value; }, board);
  await tab.goto(pathToFileURL(page).href);
  await tab.waitForSelector('#root > div');
  // Curves are drawn on canvases, two frames after they have been laid out.
  await tab.evaluate(() => new Promise((done) => { setTimeout(done, 500); }));
  await tab.screenshot({ path: path.join(folder, `${board.name}.png`) });
  await tab.close();
}
await browser.close();
