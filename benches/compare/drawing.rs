//! Drawings of what was measured: bars of ratios with their spread and their goals, and lines over sizes.

use svg::Document;
use svg::node::element::{Circle, Line, Polyline, Rectangle, Text, Title};

use crate::goal::Goal;
use crate::measure::Outcome;
use crate::spread::Spread;

const WIDTH: f64 = 900.0;
const LABELS: f64 = 380.0;
const ROW: f64 = 20.0;
const TOP: f64 = 50.0;
/// Ratios beyond this are cut off.
const RATIO_MAX: f64 = 3.0;

const GREY: &str = "#888888";
const BLUE: &str = "#3b6ea5";
const GREEN: &str = "#3c8d5a";
const RED: &str = "#c0392b";

/// One bar for each goal: the ratio that it is about, its spread as a thin line, the goal as a mark. Green is met, red missed.
pub fn goals(heading: &str, outcomes: &[Outcome]) -> Document {
    let mut bars = Vec::new();
    for outcome in outcomes {
        for target in &outcome.targets {
            for goal in target.goals {
                let label = format!(
                    "{}, {} clients: {}",
                    outcome.scenario,
                    outcome.connections,
                    goal.figure()
                );
                bars.push((label, outcome.ratio(target, goal.figure()), *goal));
            }
        }
    }
    let height = TOP + ROW * bars.len() as f64 + 30.0;
    let at = |ratio: f64| LABELS + (WIDTH - LABELS - 60.0) * ratio.min(RATIO_MAX) / RATIO_MAX;
    let mut drawing = sheet(heading, height);
    for ratio in [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0] {
        drawing = drawing
            .add(line([at(ratio), TOP - 8.0], [at(ratio), height - 28.0], "#dddddd", 1.0))
            .add(text(at(ratio), height - 12.0, "middle", &format!("{ratio}")));
    }
    for (row, (label, ratio, goal)) in bars.iter().enumerate() {
        drawing = bar(drawing, TOP + ROW * row as f64, label, *ratio, *goal, at);
    }
    drawing
}

fn bar(drawing: Document, y: f64, label: &str, ratio: Spread, goal: Goal, at: impl Fn(f64) -> f64) -> Document {
    let colour = match goal.is_met(ratio.median) {
        true => GREEN,
        false => RED,
    };
    let size = [at(ratio.median) - at(0.0), ROW - 6.0];
    let title = Title::new(format!("{label} {ratio}, {}", goal.verdict(ratio.median)));
    let rectangle = rectangle([at(0.0), y], size, colour).add(title);
    let middle = y + (ROW - 6.0) / 2.0;
    let mark = at(goal.limit());
    drawing
        .add(text(LABELS - 8.0, y + 11.0, "end", label))
        .add(rectangle)
        .add(line(
            [at(ratio.least), middle],
            [at(ratio.most), middle],
            "#222222",
            1.5,
        ))
        .add(line([mark, y - 2.0], [mark, y + ROW - 4.0], "#000000", 3.0))
        .add(text(WIDTH - 8.0, y + 11.0, "end", &format!("{:.2}", ratio.median)))
}

/// A group of bars for each row, one bar for each column, and a mark where the row has a goal.
pub fn grouped(heading: &str, columns: &[String], rows: &[(&str, Vec<f64>, Option<f64>)]) -> Document {
    const BAR: f64 = 6.0;
    const SHADES: [&str; 4] = ["#a9c4e0", "#7aa3cd", "#3b6ea5", "#1f3f63"];
    let group = BAR * columns.len() as f64 + 8.0;
    let top = TOP + 18.0;
    let height = top + group * rows.len() as f64 + 30.0;
    let most = rows
        .iter()
        .flat_map(|(_, values, _)| values)
        .copied()
        .fold(1.0, f64::max);
    let at = |value: f64| LABELS + (WIDTH - LABELS - 60.0) * value / most;
    let mut drawing = sheet(heading, height);
    for value in (0..).step_by(2).map(f64::from).take_while(|value| *value <= most) {
        drawing = drawing
            .add(line([at(value), top - 6.0], [at(value), height - 28.0], "#dddddd", 1.0))
            .add(text(at(value), height - 12.0, "middle", &format!("{value}")));
    }
    for ((position, name), shade) in columns.iter().enumerate().zip(SHADES) {
        let x = LABELS + 110.0 * position as f64;
        drawing =
            drawing
                .add(rectangle([x, TOP - 12.0], [12.0, 12.0], shade))
                .add(text(x + 18.0, TOP - 2.0, "start", name));
    }
    for (row, (label, values, goal)) in rows.iter().enumerate() {
        let y = top + group * row as f64;
        drawing = drawing.add(text(LABELS - 8.0, y + group / 2.0, "end", label));
        for ((position, value), shade) in values.iter().enumerate().zip(SHADES) {
            let size = [at(*value) - at(0.0), BAR];
            let bar = rectangle([at(0.0), y + BAR * position as f64], size, shade);
            drawing = drawing.add(bar.add(Title::new(format!("{label}, {}: {value:.1}", columns[position]))));
        }
        if let Some(goal) = goal {
            drawing = drawing.add(line([at(*goal), y - 2.0], [at(*goal), y + group - 6.0], "#000000", 2.0));
        }
    }
    drawing
}

fn rectangle([x, y]: [f64; 2], [width, height]: [f64; 2], fill: &str) -> Rectangle {
    Rectangle::new()
        .set("x", x)
        .set("y", y)
        .set("width", width)
        .set("height", height)
        .set("fill", fill)
}

/// A line for each target over the sizes: its p50 as a multiple of that at the smallest size.
pub fn over_sizes(heading: &str, sizes: &[u64], lines: &[(&str, Vec<f64>)]) -> Document {
    let (left, right, bottom) = (70.0, 160.0, 320.0);
    let most = lines.iter().flat_map(|(_, values)| values).copied().fold(1.5, f64::max);
    let steps = (sizes.len() - 1).max(1) as f64;
    let x = |size: usize| left + (WIDTH - left - right) * size as f64 / steps;
    let y = |value: f64| bottom - (bottom - TOP) * value / most;
    let mut drawing = sheet(heading, bottom + 40.0);
    for value in [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]
        .into_iter()
        .filter(|value| *value <= most)
    {
        drawing = drawing
            .add(line([left, y(value)], [WIDTH - right, y(value)], "#dddddd", 1.0))
            .add(text(left - 8.0, y(value) + 4.0, "end", &format!("{value}")));
    }
    for (at, size) in sizes.iter().enumerate() {
        drawing = drawing.add(text(x(at), bottom + 20.0, "middle", &size.to_string()));
    }
    for ((name, values), colour) in lines.iter().zip([BLUE, GREY]) {
        let points: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(at, value)| format!("{},{}", x(at), y(*value)))
            .collect();
        let line = Polyline::new()
            .set("points", points.join(" "))
            .set("fill", "none")
            .set("stroke", colour)
            .set("stroke-width", 2.5);
        drawing = drawing.add(line);
        for (at, value) in values.iter().enumerate() {
            drawing = drawing.add(
                Circle::new()
                    .set("cx", x(at))
                    .set("cy", y(*value))
                    .set("r", 4)
                    .set("fill", colour),
            );
        }
        let last = values.last().copied().unwrap_or(1.0);
        drawing = drawing.add(text(WIDTH - right + 10.0, y(last) + 4.0, "start", name).set("fill", colour));
    }
    drawing
}

fn sheet(heading: &str, height: f64) -> Document {
    Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(
            Rectangle::new()
                .set("width", "100%")
                .set("height", "100%")
                .set("fill", "white"),
        )
        .add(text(16.0, 24.0, "start", heading).set("font-size", 15))
}

fn text(x: f64, y: f64, anchor: &str, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y).set("text-anchor", anchor)
}

fn line(from: [f64; 2], to: [f64; 2], colour: &str, width: f64) -> Line {
    Line::new()
        .set("x1", from[0])
        .set("y1", from[1])
        .set("x2", to[0])
        .set("y2", to[1])
        .set("stroke", colour)
        .set("stroke-width", width)
}
