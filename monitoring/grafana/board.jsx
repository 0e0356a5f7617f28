// One dashboard, drawn with Grafana's own components from series that are given as window.BOARD.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dateTime, FieldColorModeId, FieldType, ThemeContext, toDataFrame,
} from '@grafana/data';
import {
  BarGauge, BarGaugeDisplayMode, BigValue, BigValueColorMode, BigValueGraphMode, LegendDisplayMode,
  PanelChrome, TimeSeries,
} from '@grafana/ui';

const WIDTH = 1400, ROW = 34, HEAD = 56, GAP = 8, TALLEST_BAR = 36;
const CURVE = { drawStyle: 'line', lineWidth: 1.5, fillOpacity: 5, showPoints: 'never' };
const STACK = { ...CURVE, lineWidth: 0, fillOpacity: 60, stacking: { mode: 'normal', group: 'A' } };
const theme = createTheme({ colors: { mode: 'light' } });

const framesOf = (panel) => applyFieldOverrides({
  data: panel.series.map(({ name, times, values }, place) => toDataFrame({
    refId: `A${place}`,
    fields: [
      { name: 'Time', type: FieldType.time, values: times, config: {} },
      {
        name: name || panel.title,
        type: FieldType.number,
        values,
        config: {
          displayName: name || panel.title,
          unit: panel.unit,
          custom: panel.isStacked ? STACK : CURVE,
          color: { mode: FieldColorModeId.PaletteClassic },
        },
      },
    ],
  })),
  fieldConfig: { defaults: {}, overrides: [] },
  replaceVariables: (text) => text,
  theme,
  timeZone: 'utc',
});

const shown = (field, title) => ({ ...field.display(field.values[field.values.length - 1]), title });

function Numbers({ panel, width, height }) {
  const [, field] = framesOf(panel)[0].fields;
  return (
    <BigValue width={width} height={height} theme={theme} value={shown(field, '')}
      colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} />
  );
}

function Bars({ panel, width, height }) {
  const fields = framesOf(panel).map((frame) => frame.fields[1]);
  const highest = Math.max(...fields.map((field) => field.values[field.values.length - 1]));
  const each = Math.min(TALLEST_BAR + GAP, height / fields.length);
  return fields.map((field, place) => (
    <div key={place} style={{ height: each }}>
      <BarGauge width={width} height={each - GAP} theme={theme} orientation="horizontal"
        displayMode={BarGaugeDisplayMode.Gradient} display={field.display}
        field={{ ...field.config, min: 0, max: highest }} value={shown(field, panel.series[place].name)} />
    </div>
  ));
}

function Curves({ panel, width, height, range }) {
  const legend = { displayMode: LegendDisplayMode.List, placement: 'bottom', calcs: [], showLegend: true };
  return (
    <TimeSeries width={width} height={height} timeRange={range} timeZone="utc"
      frames={framesOf(panel)} legend={legend} />
  );
}

const BODIES = { stat: Numbers, bargauge: Bars, timeseries: Curves };

function Panel({ panel, range }) {
  const { x, y, w, h } = panel.at;
  const width = (w * WIDTH) / 24 - GAP, height = h * ROW - GAP;
  const Body = BODIES[panel.type];
  return (
    <div style={{ position: 'absolute', left: (x * WIDTH) / 24 + GAP / 2, top: y * ROW + HEAD, width, height }}>
      <PanelChrome title={panel.title} width={width} height={height} padding="sm">
        {(innerWidth, innerHeight) => panel.series.length
          ? <Body panel={panel} width={innerWidth} height={innerHeight} range={range} />
          : <div style={{ padding: GAP, color: theme.colors.text.secondary }}>No data</div>}
      </PanelChrome>
    </div>
  );
}

function Board({ board }) {
  const from = dateTime(board.fromMs), to = dateTime(board.toMs);
  const background = theme.colors.background.canvas;
  return (
    <div style={{ position: 'relative', width: WIDTH, height: board.rows * ROW + HEAD + GAP, background }}>
      <div style={{ padding: '14px 8px', fontSize: 20, color: theme.colors.text.primary }}>{board.title}</div>
      {board.panels.map((panel) => <Panel key={panel.title} panel={panel} range={{ from, to, raw: { from, to } }} />)}
    </div>
  );
}

document.body.style.fontFamily = theme.typography.fontFamily;
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}><Board board={window.BOARD} /></ThemeContext.Provider>,
);
