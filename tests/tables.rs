//! Tables as people have them: ids that are words, dates in letters, `None` as a word, text over several lines.

use crate::harness::{self, dtrain, folder, output, said, train};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Houses: the key is another word in every row, the remark has line breaks, quotes and delimiters in it.
fn houses(rows: usize) -> String {
    let mut text = "key,listed,\"garage\nkind\",remark,area,price\r\n".to_owned();
    for row in 0..rows {
        let garage = ["None", "attached", "carport"][row % 3];
        let area = if row % 10 == 3 { "None".to_owned() } else { format!("{}.5", 80 + row * 37 % 91) };
        let remark = ["\"quiet,\n\n5\"\" pipes\n\"", "5\" pipes", "\"\"", "\"a, \"\"b\"\"\""][row % 4];
        let price = 200_000 + 30_000 * (row % 3) + 700 * (row * 37 % 91);
        let listed = ["\"Jan 3, 2024\"", "3 Feb 2024", "2024/03/01", "2024-04-03T10:00:00Z"][row % 4];
        writeln!(text, "h-{row:x}-z,{listed},{garage},{remark},{area},{price}").unwrap();
    }
    text
}

fn predict(folder: &Path, arguments: &str) -> String {
    said(folder, &format!("predict {arguments}"))
}

/// A command that is refused, and says no more than the head of a table.
#[track_caller]
fn refused(folder: &Path, arguments: &str, words: &[&str]) {
    let text = harness::refused(folder, arguments, words);
    assert!(!text.contains("prediction") || text.lines().count() <= 1, "{text}");
}

#[test]
fn ids_of_words_and_dates_in_letters_are_left_out_and_none_is_a_word_among_words() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("houses.csv"), houses(400)).unwrap();
    let run = train(path, "data.kind=csv data.path=houses.csv loss.kind=mse epochs=5 name=h");
    run.succeeded();
    for words in [
        "key: left out (another value in every row)",
        "listed: left out (a date)",
        "garage kind: 3 words",
        "remark: 3 words",
        "area: ",
    ] {
        run.said(words);
    }
    // A piece of the input has a quarter of a mebibyte: rows over several lines come to lie across their ends.
    fs::write(path.join("many.csv"), houses(12_000)).unwrap();
    let all = predict(path, "h many.csv --ranks 1");
    assert_eq!(all.lines().count(), 12_001);
    for how in ["--ranks 3 --batch 7", "--ranks 2"] {
        assert!(predict(path, &format!("h many.csv {how}")) == all, "{how} has other bits");
    }
    let mut piped = dtrain(path, "predict h -");
    piped.stdin(fs::File::open(path.join("many.csv")).unwrap()).stderr(Stdio::null());
    assert!(String::from_utf8(piped.output().unwrap().stdout).unwrap() == all);
    fs::write(path.join("flat.csv"), houses(10).replace("garage\nkind", "garage")).unwrap();
    refused(
        path,
        "predict h flat.csv",
        &["flat.csv line 1: column \"garage\\nkind\" of the training table is missing"],
    );
    let (finished, text) = output(path, "eval h --data many.csv --json");
    finished.succeeded();
    let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(figures["samples"], 12_000);
    let predicted: Vec<f64> = all.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    let errors = predicted.iter().enumerate().map(|(row, value)| {
        let price = 200_000 + 30_000 * (row % 3) + 700 * (row * 37 % 91);
        (value - price as f64).abs()
    });
    let mae = errors.sum::<f64>() / 12_000.0;
    assert!((figures["mae"].as_f64().unwrap() - mae).abs() < 1e-4 * mae, "{figures} and {mae}");
}

#[test]
fn a_line_is_counted_over_line_breaks_in_quotes_and_a_quote_that_is_not_closed_is_named() {
    let folder = folder();
    let path = folder.path();
    let table = |rows: &str| format!("note,size,class\n{rows}");
    let rows: String = (0..60).map(|row| format!("\"a\nb\",{row},{}\n", row % 2)).collect();
    fs::write(path.join("good.csv"), table(&rows)).unwrap();
    train(path, "data.kind=csv data.path=good.csv epochs=1 name=g").succeeded();
    fs::write(path.join("word.csv"), table(&rows.replace(",59,", ",tall,"))).unwrap();
    let open = table(&rows.replace("b\",40,", "b,40,"));
    fs::write(path.join("open.csv"), &open).unwrap();
    // Without another quote behind it, it would take the rest of the file.
    fs::write(path.join("last.csv"), table(&rows.replace("b\",59,", "b,59,"))).unwrap();
    let run = |file: &str| train(path, &format!("data.kind=csv data.path={file} epochs=1"));
    for (file, words) in [
        ("word.csv", "word.csv line 120, column 2 (size): \"tall\" is not a number"),
        ("last.csv", "last.csv line 120: a quote is not closed"),
        ("open.csv", "open.csv line 82: "),
    ] {
        let ended = run(file);
        ended.ended_with(2);
        ended.said(words);
        ended.said("hint: ");
        refused(path, &format!("predict g {file}"), &[words, "hint: "]);
    }
    let endless = table("\"") + &"x\n".repeat(3 << 20);
    fs::write(path.join("endless.csv"), endless).unwrap();
    let ended = run("endless.csv");
    ended.ended_with(2);
    ended.said("endless.csv line 2: a quote is not closed");
    refused(path, "predict g endless.csv", &["endless.csv line 2: a quote is not closed"]);
    fs::write(path.join("head.csv"), "\"note,size,class\n1,2,3").unwrap();
    refused(path, "predict g head.csv", &["head.csv line 1: a quote is not closed"]);
}
