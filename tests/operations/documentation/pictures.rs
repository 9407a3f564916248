//! The pictures of docs/performance.md: drawn from the figures on the page, whole, and in colours that everybody can tell apart.

use std::collections::BTreeSet;

use crate::documentation::markdown::{Page, repository};

/// Okabe and Ito's blue, sky blue and vermillion, two shades of blue, and greys.
const COLOURS: [&str; 10] = [
    "#0072b2", "#56b4e9", "#d55e00", "#b5d9ee", "#003b5c", "#000000", "#444444", "#dddddd", "#ffffff", "none",
];

/// The pictures that the page shows: the file, and its text.
fn pictures() -> Vec<(String, String)> {
    let page = Page::read("docs/performance.md");
    let links = page.text.lines().filter_map(|line| line.strip_prefix("!["));
    let files = links.map(|link| link.split_once("](").unwrap().1.trim_end_matches(')').to_owned());
    let pictures = files.map(|file| {
        let text = std::fs::read_to_string(repository().join("docs").join(&file)).unwrap();
        (file, text)
    });
    pictures.collect()
}

/// The values of an attribute in a drawing.
fn values<'t>(text: &'t str, attribute: &str) -> Vec<&'t str> {
    let begin = format!(" {attribute}=\"");
    let rest = text.split(&begin[..]).skip(1).collect::<Vec<_>>();
    rest.into_iter().map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn every_picture_is_on_the_page() {
    let shown: BTreeSet<String> = pictures().into_iter().map(|(file, _)| file).collect();
    let folder = std::fs::read_dir(repository().join("docs/performance")).unwrap();
    let files = folder.map(|file| format!("performance/{}", file.unwrap().file_name().into_string().unwrap()));
    assert_eq!(shown, files.collect());
}

/// `cargo bench --bench compare -- --draw` draws them anew.
#[test]
fn they_show_the_figures_of_the_tables() {
    let page = Page::read("docs/performance.md").text.replace("**", "");
    // As many sizes as were measured, each directly and through Keyward.
    let (_, sizes) = page.split_once("<!-- size -->").unwrap();
    let (sizes, _) = sizes.split_once("<!-- /size -->").unwrap();
    let sizes = sizes.lines().filter(|line| line.starts_with("| 1")).count();
    assert!(sizes >= 3, "{sizes}");
    for (file, text) in pictures() {
        let titles: Vec<&str> = text.split("<title>").skip(1).collect();
        match file.as_str() {
            "performance/size.svg" => assert_eq!(titles.len(), 2 * sizes, "{file}"),
            _ => assert!(titles.len() >= 8, "{file}"),
        }
        for title in titles {
            let title = title.split("</title>").next().unwrap().trim();
            let (_, figures) = title.split_once(": ").unwrap();
            let figure = figures.split(", ").next().unwrap();
            assert!(page.contains(&format!("| {figure}")), "{file}: {title}");
        }
    }
}

/// The dots of a drawing: the ratio in its title, and where it is.
fn dots(text: &str) -> Vec<(f64, f64)> {
    let paths = text.split("<path ").skip(1).filter(|path| path.contains("<title>"));
    let dots = paths.map(|path| {
        let attributes = format!(" {path}");
        let d = values(&attributes, "d")[0];
        let x: f64 = d[1..].split(' ').next().unwrap().parse().unwrap();
        let x = if d.contains("a4.5") { x + 4.5 } else { x };
        let (_, figures) = path.split_once("<title>").unwrap();
        let figures = figures.split("</title>").next().unwrap().trim();
        let median = figures.split_once(": ").unwrap().1.split([' ', ',']).next().unwrap();
        (median.parse().unwrap(), x)
    });
    dots.collect()
}

#[test]
fn equal_ratios_are_equally_far_apart_and_nothing_is_cut_off() {
    let mut count = 0;
    for (file, text) in pictures() {
        let dots = dots(&text);
        let [lowest, highest] = [f64::total_cmp, |a: &f64, b: &f64| b.total_cmp(a)].map(|order| {
            let mut sorted = dots.clone();
            sorted.sort_by(|a, b| order(&a.0, &b.0));
            sorted.first().copied()
        });
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            continue;
        };
        let slope = (highest.1 - lowest.1) / (highest.0 / lowest.0).ln();
        for (median, x) in &dots {
            let expected = lowest.1 + slope * (median / lowest.0).ln();
            assert!(
                (x - expected).abs() < 0.5,
                "{file}: {median} is at {x}, not at {expected}"
            );
            count += 1;
        }
        for x in ["x1", "x2"].iter().flat_map(|end| values(&text, end)) {
            let x: f64 = x.parse().unwrap();
            assert!((300.0..=750.0).contains(&x), "{file}: a range ends at {x}");
        }
    }
    assert!(count > 100, "{count}");
}

/// Red and green, for example, look alike to many people.
#[test]
fn colours_can_be_told_apart() {
    for (file, text) in pictures() {
        for colour in ["fill", "stroke"].iter().flat_map(|attribute| values(&text, attribute)) {
            assert!(COLOURS.contains(&colour), "{file}: {colour}");
        }
    }
}
