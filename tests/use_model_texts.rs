//! A model of texts, or of token ids, says what comes next: of each line of a text, of each row of an array.

use crate::harness::files::npy;
use crate::harness::{self, dtrain, folder, said, train, write_text, write_tokens};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;

const SMALL: &str = "model.layers=2 model.width=16 model.heads=2 data.context=8 steps=60";

fn predict(folder: &Path, arguments: &str) -> String {
    said(folder, &format!("predict {arguments}"))
}

/// A command that is refused, and leaves no file.
#[track_caller]
fn refused(folder: &Path, arguments: &str, words: &[&str]) {
    harness::refused(folder, arguments, words);
    assert!(!folder.join("out.npy").exists(), "{arguments} left a file");
}

/// The header and the numbers of an array.
fn array(path: &Path) -> (String, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let numbers = bytes[128..].chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    (String::from_utf8_lossy(&bytes[..128]).into_owned(), numbers)
}

#[test]
fn a_model_of_texts_says_which_byte_comes_next_with_the_same_bits_for_any_ranks_and_batch() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 6_000);
    for kind in ["gpt", "gpt2", "llama"] {
        train(path, &format!("data.kind=text data.path=text.txt model.kind={kind} {SMALL} name={kind}"))
            .succeeded();
        // One is empty, one is longer than what the model sees, two end alike.
        let lines = "the ca\n\r\na dog\nthe dog sat on the ca\non the ca\n";
        fs::write(path.join("lines.txt"), lines).unwrap();
        let csv = predict(path, &format!("{kind} lines.txt --ranks 1"));
        let rows: Vec<&str> = csv.lines().collect();
        assert_eq!((rows[0], rows.len()), ("prediction,probability", 5), "{csv}");
        assert_eq!(rows[3], rows[4], "the last 8 bytes are the same");
        for how in ["--ranks 3 --batch 1", "--ranks 2 --batch 2"] {
            assert_eq!(predict(path, &format!("{kind} lines.txt {how}")), csv, "{how}");
        }
        let mut piped = dtrain(path, &format!("predict {kind} -"));
        piped.stdin(fs::File::open(path.join("lines.txt")).unwrap()).stderr(Stdio::null());
        assert_eq!(String::from_utf8(piped.output().unwrap().stdout).unwrap(), csv);

        // The same from every logit: of the lines, and of their bytes as an array.
        predict(path, &format!("{kind} lines.txt -o next.npy"));
        let (header, next) = array(&path.join("next.npy"));
        assert!(header.contains("(4, 256)") && next.len() == 4 * 256, "{header}");
        fs::write(path.join("ids.npy"), npy("|u1", &[2, 6], b"the caa dog ")).unwrap();
        predict(path, &format!("{kind} ids.npy -o all.npy --batch 1"));
        let (header, all) = array(&path.join("all.npy"));
        assert!(header.contains("(2, 6, 256)") && all.len() == 2 * 6 * 256, "{header}");
        assert_eq!(all[5 * 256..6 * 256], next[..256], "behind \"the ca\"");
        assert_eq!(all[10 * 256..11 * 256], next[256..512], "behind \"a dog\", whatever comes after it");
        let shares = |logits: &[f32]| {
            let all: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            logits.iter().map(|logit| f64::from(*logit).exp() / all).collect::<Vec<f64>>()
        };
        let text = predict(path, &format!("{kind} lines.txt --format jsonl"));
        for (line, (logits, row)) in text.lines().zip(next.chunks(256).zip(&rows[1..])) {
            let line: Value = serde_json::from_str(line).unwrap();
            let shares = shares(logits);
            let named = line["next"].as_array().unwrap();
            let greatest = shares.iter().copied().fold(0.0, f64::max);
            let probability = line["probability"].as_f64().unwrap();
            assert!((probability - greatest).abs() < 1e-6 && named.len() == 5, "{line}");
            assert_eq!(
                (&line["prediction"], &line["probability"]),
                (&named[0]["token"], &named[0]["probability"])
            );
            let token = line["prediction"].as_str().unwrap();
            assert!(row.starts_with(token) && token.len() == 1, "{row} and {line}");
            assert!((shares[usize::from(token.as_bytes()[0])] - greatest).abs() < 1e-12, "{line}");
        }
    }
    refused(
        path,
        "predict gpt lines.txt ids.npy -o out.npy",
        &["lines.txt is a text, and ids.npy has sequences of 6"],
    );
}

#[test]
fn a_model_of_token_ids_says_which_id_comes_next_and_what_is_no_id_is_refused() {
    let folder = folder();
    let path = folder.path();
    write_tokens(&path.join("ids"), 4_000);
    train(path, &format!("data.kind=tokens data.path=ids data.vocabulary=300 {SMALL} name=t")).succeeded();
    let ids = |kind: &str, shape: &[usize], ids: &[u16]| {
        npy(kind, shape, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
    };
    let put = |name: &str, bytes: Vec<u8>| fs::write(path.join(name), bytes).unwrap();
    put("good.npy", ids("<u2", &[2, 3], &[0, 1, 4, 9, 16, 25]));
    let csv = predict(path, "t good.npy");
    let called: Vec<usize> =
        csv.lines().skip(1).map(|row| row.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(called.len() == 2 && called.iter().all(|id| *id < 300), "{csv}");
    predict(path, "t good.npy -o good-logits.npy");
    let (_, logits) = array(&path.join("good-logits.npy"));
    let behind = |row: usize| &logits[(row * 3 + 2) * 300..][..300];
    for (row, called) in called.iter().enumerate() {
        assert!(behind(row).iter().all(|logit| *logit <= behind(row)[*called]));
    }
    put("flat.npy", ids("<u2", &[6], &[0; 6]));
    put("long.npy", ids("<u2", &[1, 9], &[0; 9]));
    put("beyond.npy", ids("<u2", &[2, 3], &[0, 1, 4, 9, 300, 25]));
    put("half.npy", npy("<f4", &[1, 1], &0.5f32.to_le_bytes()));
    fs::write(path.join("words.txt"), "the cat\n").unwrap();
    for (file, words) in [
        ("flat.npy", &["flat.npy has shape [n], expected token ids [n, time]", "reshape(1, -1)"][..]),
        ("long.npy", &["long.npy has sequences of 9 tokens, and the model sees 8", "ids[:, -8:]"]),
        ("beyond.npy", &["beyond.npy row 2, token 2: 300 is no id of a vocabulary of 300", "hint: "]),
        ("half.npy", &["half.npy row 1, token 1: 0.5 is no id"]),
        ("words.txt", &["words.txt is no .npy array of token ids", "has no tokenizer"]),
        ("ids/val.bin", &["ids/val.bin is no .npy array of token ids"]),
        ("nowhere.npy", &["nowhere.npy does not exist", "hint: "]),
    ] {
        refused(path, &format!("predict t {file} -o out.npy"), words);
    }
}
