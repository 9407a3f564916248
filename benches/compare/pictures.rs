//! The pictures of `docs/performance.md`: each answers one question, and is drawn from the figures of a table on the page.

use std::path::Path;

use svg::Document;

use crate::drawing::{self, Better, Dot, Ratios, Row};
use crate::goal::{Figure, Goal};
use crate::page;
use crate::spread::Spread;
use crate::stored::Table;

/// A picture: the name of its file, the question that it answers, and the drawing.
struct Picture {
    file: String,
    question: String,
    drawing: Document,
}

/// The tables that have pictures.
pub const DRAWN: [&str; 5] = ["forwarded", "protected", "shards", "routed", "size"];

/// Draws the pictures of the table `name`, and puts them above it.
pub fn draw(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance");
    page::rewrite(name, |text| {
        let mut links = String::new();
        for picture in of(name, &Table::all_in(text)) {
            let file = format!("{}.svg", picture.file);
            svg::save(folder.join(&file), &picture.drawing).unwrap();
            links.push_str(&format!("![{}](performance/{file})\n\n", picture.question));
        }
        let tables = text.lines().skip_while(|line| !line.starts_with('|'));
        links + &tables.collect::<Vec<_>>().join("\n")
    });
}

/// The pictures of a table; none if it has none.
fn of(name: &str, tables: &[Table]) -> Vec<Picture> {
    let both = [Figure::Throughput, Figure::P50];
    match name {
        "forwarded" => Figure::ALL.map(|figure| forwarded(&tables[0], figure)).into(),
        "protected" => both.map(|figure| protected(&tables[0], figure)).into(),
        "routed" => both.map(|figure| routed(&tables[0], figure)).into(),
        "shards" => vec![shards(&tables[0])],
        "size" => vec![size(&tables[0])],
        _ => Vec::new(),
    }
}

fn picture(file: String, ratios: Ratios) -> Picture {
    let drawing = drawing::ratios(&ratios);
    Picture {
        file,
        question: ratios.question,
        drawing,
    }
}

/// How a file names a figure, and which ratios of it are good.
fn kind(figure: Figure) -> (&'static str, Better) {
    match figure {
        Figure::Throughput => ("throughput", Better::More),
        Figure::P50 => ("p50", Better::Less),
        Figure::P99 => ("p99", Better::Less),
    }
}

fn clients(count: &str) -> String {
    match count {
        "1" => "1 client".to_owned(),
        _ => format!("{count} clients"),
    }
}

/// A row's ratio of `figure`, and the goal that the row has for it.
fn dot(row: &[String], table: &Table, figure: Figure) -> Dot {
    let ratio = Spread::read(&row[table.column(&format!("{figure}, ratio"))]);
    let goals = row[table.column("goal")].split("; ").filter_map(Goal::read);
    let goal = goals.into_iter().find(|goal| goal.figure() == figure);
    Dot { ratio, goal }
}

fn forwarded(table: &Table, figure: Figure) -> Picture {
    let (file, better) = kind(figure);
    let of = |target: &str, first: &[String]| {
        let mut rows = table.rows.iter();
        let row = rows.find(|row| row[..2] == first[..2] && row[2] == target);
        row.map(|row| dot(row, table, figure))
    };
    let rows = table.rows.iter().filter(|row| row[2] == "HAProxy").map(|first| Row {
        group: clients(&first[1]),
        label: first[0].clone(),
        dots: vec![of("Keyward", first), of("direct", first)],
    });
    let ratios = Ratios {
        question: match figure {
            Figure::Throughput => "How many operations a second does Keyward forward, against HAProxy (1)?",
            Figure::P50 => "How long does a forwarded operation take (median), against HAProxy (1)?",
            Figure::P99 => "How long do the slowest forwarded operations take (p99), against HAProxy (1)?",
        }
        .to_owned(),
        better,
        series: vec!["Keyward".to_owned(), "without a proxy".to_owned()],
        rows: rows.collect(),
    };
    picture(format!("forwarded-{file}"), ratios)
}

fn protected(table: &Table, figure: Figure) -> Picture {
    let (file, better) = kind(figure);
    let mut rows = Vec::new();
    let mut first: &[String] = &[];
    for row in &table.rows {
        if first.get(..2) != Some(&row[..2]) {
            first = row;
            continue;
        }
        let dot = Some(dot(row, table, figure));
        let is_keyward = row[2].starts_with("Keyward");
        rows.push(Row {
            group: format!("{}, {}; 1 is {}", row[0], clients(&row[1]), first[2]),
            label: row[2].clone(),
            dots: if is_keyward { vec![dot, None] } else { vec![None, dot] },
        });
    }
    let ratios = Ratios {
        question: match figure {
            Figure::Throughput => "How many protected writes a second, against what an application does instead (1)?",
            _ => "How long does a protected write take (median), against what an application does instead (1)?",
        }
        .to_owned(),
        better,
        series: vec!["Keyward".to_owned(), "without Keyward".to_owned()],
        rows,
    };
    picture(format!("protected-{file}"), ratios)
}

fn routed(table: &Table, figure: Figure) -> Picture {
    let (file, better) = kind(figure);
    // The first ratio is of the p50, the second of the throughput.
    let ratios = table.columns("ratio");
    let column = match figure {
        Figure::Throughput => ratios[1],
        _ => ratios[0],
    };
    let dot = |shards: &str, count: &str| {
        let mut rows = table.rows.iter();
        let row = rows.find(|row| row[0] == shards && row[1] == count)?;
        let ratio = Spread::read(&row[column]);
        Some(Dot { ratio, goal: None })
    };
    let rows = table.rows.iter().filter(|row| row[1] == "1").map(|row| Row {
        group: "find by a unique field, without the shard key".to_owned(),
        label: format!("{} shards", row[0]),
        dots: ["1", "64"].map(|count| dot(&row[0], count)).into(),
    });
    let ratios = Ratios {
        question: match figure {
            Figure::Throughput => "How many routed finds a second, against a broadcast to all shards (1)?",
            _ => "How long does a routed find take (median), against a broadcast to all shards (1)?",
        }
        .to_owned(),
        better,
        series: ["1", "64"].map(clients).into(),
        rows: rows.collect(),
    };
    picture(format!("routed-{file}"), ratios)
}

fn size(table: &Table) -> Picture {
    let column = |target: &str| table.column(&format!("{target}, growth"));
    let dot = |cell: &str| {
        let ratio = Spread::read(cell);
        Some(Dot { ratio, goal: None })
    };
    let rows = table.rows.iter().map(|row| Row {
        group: "reservations and documents".to_owned(),
        label: grouped_digits(&row[0]),
        dots: ["Keyward", "direct"].map(|target| dot(&row[column(target)])).into(),
    });
    let ratios = Ratios {
        question: format!(
            "How much longer does an insert take (median) than among {} reservations (1)?",
            grouped_digits(&table.rows[0][0])
        ),
        better: Better::Less,
        series: vec!["Keyward".to_owned(), "direct".to_owned()],
        rows: rows.collect(),
    };
    picture("size".to_owned(), ratios)
}

/// 10000 as 10,000.
fn grouped_digits(number: &str) -> String {
    let mut text = String::new();
    for (at, digit) in number.chars().enumerate() {
        if at > 0 && (number.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn shards(table: &Table) -> Picture {
    let goal = table.column("goal");
    let columns = &table.head[2..goal];
    let rows = table.rows.iter().map(|row| {
        let counts = row[2..goal].iter().map(|count| count.parse().expect("a count"));
        let most = row[goal].strip_prefix("≤ ").and_then(|goal| goal.split(':').next());
        (
            row[0].clone(),
            counts.collect(),
            most.map(|most| most.parse().expect("a goal")),
        )
    });
    let rows: Vec<_> = rows.collect();
    let question = "How many commands does a statement take, on all shards together? Black line: goal";
    Picture {
        file: "shards".to_owned(),
        question: question.to_owned(),
        drawing: drawing::grouped(question, columns, &rows),
    }
}
