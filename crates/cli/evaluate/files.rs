//! Figures as tables for other programs, and as a picture.

use super::classes::ClassFigures;
use crate::csv_field::csv_field;
use std::fmt::Write;

/// The confusion matrix: a line a true class, a column a predicted one.
#[must_use]
pub fn confusion_csv(figures: &ClassFigures, names: &[String]) -> String {
    let mut text = format!(
        "true/predicted,{}\n",
        names.iter().map(|name| csv_field(name)).collect::<Vec<_>>().join(",")
    );
    for (target, name) in names.iter().enumerate() {
        let counts: Vec<String> =
            (0..names.len()).map(|called| figures.count(target, called).to_string()).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{},{}", csv_field(name), counts.join(","));
    }
    text
}

/// The figures of each class.
#[must_use]
pub fn classes_csv(figures: &ClassFigures, names: &[String]) -> String {
    let mut text = "class,precision,recall,f1,samples,auc,average_precision\n".to_owned();
    for (class, name) in names.iter().enumerate() {
        let row = figures.row(class);
        let _ =
            write!(text, "{},{},{},{},{}", csv_field(name), row.precision, row.recall, row.f1, row.samples);
        // A class without them, or many classes: nothing stands between the commas.
        let area = |number: Option<f64>| number.map_or(String::new(), |number| number.to_string());
        let (roc, precision) =
            (row.areas.map(|areas| areas.roc), row.areas.map(|areas| areas.average_precision));
        let _ = writeln!(text, ",{},{}", area(roc), area(precision));
    }
    text
}

/// Pixels of a field of the picture, and of the margin for names.
const CELL: usize = 44;
const MARGIN: usize = 130;

/// The confusion matrix as a picture: the darker, the greater the share of the true class.
#[must_use]
pub fn confusion_svg(figures: &ClassFigures, names: &[String]) -> String {
    let side = MARGIN + names.len() * CELL + 20;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{side}\" height=\"{side}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let middle = MARGIN + names.len() * CELL / 2;
    let _ = writeln!(text, "<text x=\"{middle}\" y=\"16\" text-anchor=\"middle\">predicted</text>");
    let _ = writeln!(
        text,
        "<text transform=\"translate(14 {middle}) rotate(-90)\" text-anchor=\"middle\">true</text>"
    );
    for (at, name) in names.iter().enumerate() {
        let (place, name) = (MARGIN + at * CELL + CELL / 2, escaped(&shortened(name)));
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            MARGIN - 6,
            place + 4
        );
        let _ = writeln!(
            text,
            "<text transform=\"translate({} {}) rotate(-60)\">{name}</text>",
            place,
            MARGIN - 6
        );
    }
    for target in 0..names.len() {
        let of = figures.row(target).samples.max(1) as f64;
        for called in 0..names.len() {
            let count = figures.count(target, called);
            let share = count as f64 / of;
            let (x, y) = (MARGIN + called * CELL, MARGIN + target * CELL);
            let colour = if target == called { "#1a6fb5" } else { "#c0392b" };
            let _ = writeln!(
                text,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{colour}\" \
                 fill-opacity=\"{share:.3}\" stroke=\"#ddd\"/>"
            );
            let ink = if share > 0.5 { "white" } else { "black" };
            if count > 0 {
                let (x, y) = (x + CELL / 2, y + CELL / 2 + 4);
                let _ = writeln!(
                    text,
                    "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{ink}\">{count}</text>"
                );
            }
        }
    }
    text + "</svg>\n"
}

/// A name that fits into the margin.
fn shortened(name: &str) -> String {
    const MOST: usize = 14;
    match name.chars().count() > MOST {
        true => name.chars().take(MOST - 1).chain(['\u{2026}']).collect(),
        false => name.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_the_picture_have_every_class_by_its_name() {
        let names = ["a<b".to_owned(), "c,d".to_owned()];
        let mut figures = ClassFigures::new(2);
        figures.add(0, &[1.0, 0.0]);
        figures.add(1, &[1.0, 0.0]);
        assert_eq!(confusion_csv(&figures, &names), "true/predicted,a<b,\"c,d\"\na<b,1,0\n\"c,d\",1,0\n");
        assert!(
            classes_csv(&figures, &names)
                .ends_with("a<b,0.5,1,0.6666666666666666,1,0.5,0.5\n\"c,d\",0,0,0,1,0.5,0.5\n")
        );
        let svg = confusion_svg(&figures, &names);
        assert!(svg.contains("a&lt;b") && svg.trim_end().ends_with("</svg>"));
    }
}
