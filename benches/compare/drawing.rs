//! Drawings of what was measured: ratios as dots with their ranges on a logarithmic axis around 1, and counts as bars.
//!
//! Colours are of Okabe and Ito's palette, which people with any colour vision can tell apart. Each colour also has a shape.

use svg::Document;
use svg::node::element::{Line, Path, Rectangle, Text, Title};

use crate::goal::Goal;
use crate::spread::Spread;

const WIDTH: f64 = 900.0;
const LABELS: f64 = 300.0;
/// Where the axis ends; the figures stand behind it.
const RIGHT: f64 = 750.0;
const ROW: f64 = 24.0;

const GRID: &str = "#dddddd";
const BLACK: &str = "#000000";
/// Okabe and Ito's blue and vermillion.
const COLOURS: [&str; 2] = ["#0072b2", "#d55e00"];

/// Which ratios are good.
#[derive(Debug, Clone, Copy)]
pub enum Better {
    More,
    Less,
}

/// A ratio, and the goal for it if there is one.
pub struct Dot {
    pub ratio: Spread,
    pub goal: Option<Goal>,
}

/// What stands on one line: a dot for each series that has one.
pub struct Row {
    /// The heading above the rows that have the same one.
    pub group: String,
    pub label: String,
    pub dots: Vec<Option<Dot>>,
}

/// Ratios to one thing, which is 1.
pub struct Ratios {
    /// The question that the picture answers.
    pub question: String,
    pub better: Better,
    /// The names of the series, two at most.
    pub series: Vec<String>,
    pub rows: Vec<Row>,
}

/// The scale of a picture, wide enough for every range.
struct Axis {
    most: f64,
}

impl Axis {
    fn over(rows: &[Row]) -> Axis {
        let dots = rows.iter().flat_map(|row| row.dots.iter().flatten());
        let ends = dots.flat_map(|dot| [dot.ratio.most, 1.0 / dot.ratio.least]);
        Axis {
            most: ends.fold(1.5, f64::max) * 1.05,
        }
    }

    fn at(&self, ratio: f64) -> f64 {
        let middle = f64::midpoint(LABELS, RIGHT);
        middle + (RIGHT - LABELS) / 2.0 * ratio.ln() / self.most.ln()
    }

    fn ticks(&self) -> Vec<f64> {
        const FINE: [f64; 4] = [1.0, 1.2, 1.5, 2.0];
        const COARSE: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
        let ticks: &[f64] = if self.most < 3.0 { &FINE } else { &COARSE };
        let within = ticks.iter().copied().filter(|tick| *tick < self.most);
        let both = within.flat_map(|tick| [1.0 / tick, tick]);
        // 1 only once.
        both.skip(1).collect()
    }
}

/// Draws ratios. A filled dot meets its goal or has none, a hollow one misses it.
pub fn ratios(picture: &Ratios) -> Document {
    let groups = 1 + picture
        .rows
        .windows(2)
        .filter(|pair| pair[0].group != pair[1].group)
        .count();
    let top = 92.0;
    let bottom = top + ROW * (picture.rows.len() + groups) as f64;
    let axis = Axis::over(&picture.rows);
    let mut drawing = head(sheet(&picture.question, bottom + 34.0), picture);
    for tick in axis.ticks() {
        let (colour, width) = if tick == 1.0 { (BLACK, 1.5) } else { (GRID, 1.0) };
        let x = axis.at(tick);
        let label = format!("{:.2}", tick);
        let label = label.trim_end_matches('0').trim_end_matches('.');
        drawing =
            drawing
                .add(line([x, top - 6.0], [x, bottom], colour, width))
                .add(text(x, bottom + 18.0, "middle", label));
    }
    let mut y = top;
    let mut group = None;
    for row in &picture.rows {
        if group != Some(&row.group) {
            drawing = drawing.add(text(16.0, y + 16.0, "start", &row.group).set("font-weight", "bold"));
            group = Some(&row.group);
            y += ROW;
        }
        drawing = ratio_row(drawing, y, row, &picture.series, &axis);
        y += ROW;
    }
    drawing
}

/// What the marks mean, above the rows.
fn head(mut drawing: Document, picture: &Ratios) -> Document {
    let mut x = 16.0;
    for (series, name) in picture.series.iter().enumerate() {
        drawing = drawing
            .add(mark([x + 6.0, 44.0], series, true))
            .add(text(x + 18.0, 48.0, "start", name));
        x += 34.0 + 7.0 * name.len() as f64;
    }
    let dots = || picture.rows.iter().flat_map(|row| row.dots.iter().flatten());
    let mut notes = vec![match dots().any(|dot| dot.ratio.most > dot.ratio.least) {
        true => "line: from the smallest to the largest round",
        false => "the page has no ranges of these figures",
    }];
    if dots().any(|dot| dot.goal.is_some()) {
        notes.push("black tick: goal");
        notes.push("hollow: goal missed");
    }
    let better = match picture.better {
        Better::More => "higher is better →",
        Better::Less => "← lower is better",
    };
    drawing
        .add(text(x, 48.0, "start", &notes.join("; ")).set("fill", "#444444"))
        .add(text(f64::midpoint(LABELS, RIGHT), 76.0, "middle", better))
        .add(text(WIDTH - 8.0, 76.0, "end", &picture.series[0]))
}

fn ratio_row(mut drawing: Document, y: f64, row: &Row, series: &[String], axis: &Axis) -> Document {
    let middle = y + ROW / 2.0;
    drawing = drawing.add(text(LABELS - 14.0, middle + 4.0, "end", &row.label));
    let apart = if row.dots.iter().flatten().count() > 1 {
        5.0
    } else {
        0.0
    };
    for (number, dot) in row.dots.iter().enumerate() {
        let Some(Dot { ratio, goal }) = dot else {
            continue;
        };
        let y = middle + apart * (2.0 * number as f64 - 1.0);
        let is_met = goal.is_none_or(|goal| goal.is_met(ratio.median));
        let verdict = goal.map_or(String::new(), |goal| format!(", {}", goal.verdict(ratio.median)));
        let figure = figure(*ratio);
        let title = format!("{}, {}, {}: {figure}{verdict}", row.group, row.label, series[number]);
        let [least, most] = [ratio.least, ratio.most].map(|ratio| axis.at(ratio));
        drawing = drawing.add(line([least, y], [most, y], COLOURS[number], 2.0));
        if let Some(goal) = goal {
            let x = axis.at(goal.limit());
            drawing = drawing.add(line([x, y - 6.0], [x, y + 6.0], BLACK, 2.5));
        }
        let dot = mark([axis.at(ratio.median), y], number, is_met).add(Title::new(title.replace("**", "")));
        drawing = drawing.add(dot);
    }
    let figure = row.dots[0].as_ref().map(|dot| figure(dot.ratio));
    drawing.add(text(WIDTH - 8.0, middle + 4.0, "end", &figure.unwrap_or_default()))
}

/// A ratio as the table states it.
fn figure(ratio: Spread) -> String {
    match ratio.most > ratio.least {
        true => ratio.to_string().replace("**", ""),
        false => format!("{:.2}", ratio.median),
    }
}

/// The mark of a series: a circle or a diamond.
fn mark([x, y]: [f64; 2], series: usize, is_filled: bool) -> Path {
    let shape = match series {
        0 => format!("M{} {y}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", x - 4.5),
        _ => format!("M{x} {}l5 5l-5 5l-5 -5z", y - 5.0),
    };
    Path::new()
        .set("d", shape)
        .set("fill", if is_filled { COLOURS[series] } else { "#ffffff" })
        .set("stroke", COLOURS[series])
        .set("stroke-width", 2)
}

/// A group of bars for each row, one bar for each column, and a mark where the row has a goal.
pub fn grouped(question: &str, columns: &[String], rows: &[(String, Vec<f64>, Option<f64>)]) -> Document {
    const BAR: f64 = 6.0;
    const SHADES: [&str; 4] = ["#b5d9ee", "#56b4e9", "#0072b2", "#003b5c"];
    let group = BAR * columns.len() as f64 + 8.0;
    let top = 68.0;
    let height = top + group * rows.len() as f64 + 30.0;
    let values = rows.iter().flat_map(|(_, values, _)| values);
    let most = values.copied().fold(1.0, f64::max);
    let at = |value: f64| LABELS + (WIDTH - LABELS - 60.0) * value / most;
    let mut drawing = sheet(question, height);
    for value in (0..).step_by(2).map(f64::from).take_while(|value| *value <= most) {
        drawing = drawing
            .add(line([at(value), top - 6.0], [at(value), height - 28.0], GRID, 1.0))
            .add(text(at(value), height - 12.0, "middle", &format!("{value}")));
    }
    for ((position, name), shade) in columns.iter().enumerate().zip(SHADES) {
        let x = LABELS + 110.0 * position as f64;
        drawing = drawing
            .add(rectangle([x, 38.0], [12.0, 12.0], shade))
            .add(text(x + 18.0, 48.0, "start", name));
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
            drawing = drawing.add(line([at(*goal), y - 2.0], [at(*goal), y + group - 6.0], BLACK, 2.0));
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

fn sheet(question: &str, height: f64) -> Document {
    Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(rectangle([0.0, 0.0], [WIDTH, height], "#ffffff"))
        .add(text(16.0, 24.0, "start", question).set("font-size", 15))
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
