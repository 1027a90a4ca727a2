//! How do the figures look? One SVG for each measure, in light and in dark.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::page::number;
use crate::report::{Document, Measure, Series};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The colours of a page.
#[derive(Clone, Copy)]
struct Theme {
    name: &'static str,
    paper: RGBColor,
    ink: RGBColor,
    grid: RGBColor,
    /// Told apart by colour-blind eyes (Okabe and Ito), ours first.
    lines: [RGBColor; 7],
}

const LIGHT: Theme = Theme {
    name: "light",
    paper: RGBColor(255, 255, 255),
    ink: RGBColor(31, 35, 40),
    grid: RGBColor(216, 222, 228),
    lines: [
        RGBColor(0, 114, 178),
        RGBColor(213, 94, 0),
        RGBColor(0, 158, 115),
        RGBColor(204, 121, 167),
        RGBColor(190, 140, 0),
        RGBColor(86, 180, 233),
        RGBColor(110, 110, 110),
    ],
};

const DARK: Theme = Theme {
    name: "dark",
    paper: RGBColor(13, 17, 23),
    ink: RGBColor(230, 237, 243),
    grid: RGBColor(48, 54, 61),
    lines: [
        RGBColor(88, 166, 255),
        RGBColor(255, 140, 66),
        RGBColor(64, 201, 155),
        RGBColor(235, 150, 200),
        RGBColor(240, 200, 70),
        RGBColor(150, 220, 255),
        RGBColor(170, 175, 180),
    ],
};

const PANEL: (u32, u32) = (440, 330);
const LEGEND_LINE: i32 = 20;

/// Draws every measure that the document holds.
pub(crate) fn draw(document: &Document, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for theme in [LIGHT, DARK] {
        let file = |name: &str| folder.join(format!("{name}-{}.svg", theme.name));
        if let Some(measure) = document.measure("throughput") {
            lines(&file("throughput"), theme, &by_group(measure), "tasks", "pairs per second")?;
        }
        if let Some(measure) = document.measure("latency") {
            dots(&file("latency"), theme, measure)?;
        }
        if let Some(measure) = document.measure("hand-off p50") {
            lines(&file("hand-off"), theme, &by_group(measure), "waiters in one process", "ms, p50")?;
        }
        if let Some(measure) = document.measure("counters") {
            let series: Vec<&Series> = measure.contenders.iter().collect();
            let panel = [("latency of a pair".to_owned(), series)];
            lines(&file("counters"), theme, &panel, "keys that were locked before", "ms, p50")?;
        }
        let sides = ["memory of the client", "memory of the server"];
        let panels: Vec<_> = sides
            .iter()
            .filter_map(|side| document.measure(side))
            .map(|measure| (measure.name.clone(), measure.contenders.iter().collect()))
            .collect();
        if !panels.is_empty() {
            lines(&file("memory"), theme, &panels, "locks held", "bytes per lock")?;
        }
    }
    Ok(())
}

type Panel<'a> = (String, Vec<&'a Series>);

fn by_group(measure: &Measure) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for series in &measure.contenders {
        match panels.iter_mut().find(|(group, _)| *group == series.group) {
            Some((_, of_group)) => of_group.push(series),
            None => panels.push((series.group.clone(), vec![series])),
        }
    }
    panels
}

/// Panels two abreast, each with its lines and what they mean.
fn lines(file: &Path, theme: Theme, panels: &[Panel<'_>], by: &str, unit: &str) -> Result<()> {
    let columns = panels.len().min(2);
    let rows = panels.len().div_ceil(columns);
    let most = panels.iter().map(|(_, series)| series.len()).max().unwrap_or(0);
    let height = PANEL.1 + u32::try_from(most)? * LEGEND_LINE.unsigned_abs();
    let size = (PANEL.0 * u32::try_from(columns)?, height * u32::try_from(rows)?);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&theme.paper)?;
    for ((title, series), area) in panels.iter().zip(root.split_evenly((rows, columns))) {
        let (chart, legend) = area.split_vertically(PANEL.1);
        panel(&chart, theme, (title, by, unit), series)?;
        for (at, series) in series.iter().enumerate() {
            let y = LEGEND_LINE * i32::try_from(at)? + 6;
            legend.draw(&Circle::new((72, y), 4, colour(theme, at).filled()))?;
            legend.draw(&Text::new(series.name.clone(), (84, y - 6), text(theme, 13)))?;
        }
    }
    root.present().map_err(|error| anyhow!("cannot write {}: {error}", file.display()))
}

fn panel(area: &Area<'_>, theme: Theme, (title, by, unit): (&str, &str, &str), series: &[&Series]) -> Result<()> {
    let mut steps: Vec<f64> = series.iter().flat_map(|series| &series.points).map(|point| point.at).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let place = |at: f64| steps.iter().position(|step| (step - at).abs() < 1e-9).unwrap_or(0) as f64;
    let (low, high) = range(series);
    let right = steps.len().saturating_sub(1) as f64 + 0.2;
    let mut chart = ChartBuilder::on(area)
        .caption(title, text(theme, 16))
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d(-0.2..right, (low..high).log_scale())?;
    let label = |x: &f64| {
        let near = x.round();
        let step = steps.get(near.max(0.0) as usize).filter(|_| (x - near).abs() < 1e-6);
        step.map(|step| short(*step)).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(steps.len() + 1)
        .x_label_formatter(&label)
        .y_label_formatter(&|y| short(*y))
        .y_labels(8)
        .axis_style(theme.grid)
        .bold_line_style(theme.grid)
        .light_line_style(TRANSPARENT)
        .label_style(text(theme, 12))
        .x_desc(by)
        .y_desc(unit)
        .axis_desc_style(text(theme, 13))
        .draw()?;
    for (at, series) in series.iter().enumerate() {
        let style = colour(theme, at).stroke_width(if series.name.starts_with("SyncGuard") { 3 } else { 2 });
        let points = series.points.iter().map(|point| (place(point.at), point.value.median));
        chart.draw_series(LineSeries::new(points.clone(), style))?;
        chart.draw_series(points.map(|point| Circle::new(point, 4, colour(theme, at).filled())))?;
        let spreads = series.points.iter().map(|point| {
            let x = place(point.at);
            PathElement::new([(x, point.value.low), (x, point.value.high)], colour(theme, at).stroke_width(1))
        });
        chart.draw_series(spreads)?;
    }
    Ok(())
}

/// One line for each contender: p50, p95 and p99, the quickest on top.
fn dots(file: &Path, theme: Theme, measure: &Measure) -> Result<()> {
    let mut series: Vec<&Series> = measure.contenders.iter().collect();
    let half = |series: &Series| series.at(50.0).map_or(f64::MAX, |point| point.value.median);
    series.sort_by(|one, other| half(other).total_cmp(&half(one)));
    let height = 110 + 28 * u32::try_from(series.len())?;
    let root = SVGBackend::new(file, (2 * PANEL.0, height)).into_drawing_area();
    root.fill(&theme.paper)?;
    let (low, high) = range(&series);
    let top = series.len() as f64 - 0.5;
    let mut chart = ChartBuilder::on(&root)
        .caption("latency of a pair, one task: p50, p95, p99", text(theme, 16))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(250)
        .build_cartesian_2d((low..high).log_scale(), -0.5..top)?;
    let name = |y: &f64| {
        let near = y.round();
        let series = series.get(near.max(0.0) as usize).filter(|_| (y - near).abs() < 1e-6 && near >= 0.0);
        series.map(|series| series.name.clone()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(series.len() + 1)
        .y_label_formatter(&name)
        .x_label_formatter(&|x| short(*x))
        .axis_style(theme.grid)
        .bold_line_style(theme.grid)
        .light_line_style(TRANSPARENT)
        .label_style(text(theme, 13))
        .x_desc("ms")
        .axis_desc_style(text(theme, 13))
        .draw()?;
    for (at, series) in series.iter().enumerate() {
        let ours = series.name.starts_with("SyncGuard");
        let colour = theme.lines[usize::from(!ours)];
        let points: Vec<(f64, f64)> = series.points.iter().map(|point| (point.value.median, at as f64)).collect();
        chart.draw_series([PathElement::new(points.clone(), colour.stroke_width(2))])?;
        let sizes = [6, 4, 3];
        chart.draw_series(points.iter().zip(sizes).map(|(point, size)| Circle::new(*point, size, colour.filled())))?;
    }
    root.present().map_err(|error| anyhow!("cannot write {}: {error}", file.display()))
}

/// From below the least to above the most, with a power of ten between them.
fn range(series: &[&Series]) -> (f64, f64) {
    let values = || series.iter().flat_map(|series| &series.points).map(|point| point.value);
    let low = values().map(|value| value.low).fold(f64::MAX, f64::min);
    let high = values().map(|value| value.high).fold(f64::MIN_POSITIVE, f64::max);
    let (low, high) = (low.max(1e-6) / 1.4, high * 1.4);
    if high / low > 20.0 {
        return (low, high);
    }
    // Otherwise no power of ten might lie between them, and the axis would have no number.
    (10_f64.powf(low.log10().floor()), 10_f64.powf(high.log10().ceil()))
}

fn colour(theme: Theme, at: usize) -> RGBColor {
    theme.lines[at % theme.lines.len()]
}

fn text(theme: Theme, size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&theme.ink)
}

/// `10M`, `100k`, `0.05`
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", number(value / 1e6)),
        value if value >= 1e3 => format!("{}k", number(value / 1e3)),
        value => number(value),
    }
}
