//! `dtrain tokenize`, and what a tokenizer beside token ids is to the runs that train on them.

use crate::harness::turn::has_turn;
use crate::harness::{dtrain, folder, json, output, refused, said, train, write_text};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

const SMALL: &str =
    "model.kind=gpt model.layers=2 model.width=16 model.heads=2 model.dropout=0 data.context=32 steps=60";

fn ids(path: &Path) -> Vec<u16> {
    let bytes = fs::read(path).unwrap();
    bytes.chunks(2).map(|two| u16::from_le_bytes(two.try_into().unwrap())).collect()
}

#[test]
fn a_text_becomes_ids_of_tokens_that_were_learnt_from_it() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 6_000);
    write_text(&path.join("val.txt"), 500);
    let line = json(path, "tokenize text.txt --vocabulary 280 --val val.txt -o data --json");
    assert_eq!((line["end"].as_str(), line["train"]["texts"].as_u64()), (Some("<|endoftext|>"), Some(1)));
    assert_eq!((line["train"]["bytes"].as_u64(), line["val"]["bytes"].as_u64()), (Some(6_000), Some(500)));
    let vocabulary = line["vocabulary"].as_u64().unwrap();
    assert!((258..=280).contains(&vocabulary), "{line}");
    let (trained, val) = (ids(&path.join("data/train.bin")), ids(&path.join("data/val.bin")));
    assert_eq!(
        (trained.len() as u64, val.len() as u64),
        (line["train"]["tokens"].as_u64().unwrap(), line["val"]["tokens"].as_u64().unwrap())
    );
    assert!(trained.len() < 3_000, "words are tokens: {}", trained.len());
    assert!(trained.iter().chain(&val).all(|id| u64::from(*id) < vocabulary));
    let ends = trained.iter().filter(|id| **id == 0).count();
    assert_eq!(
        (ends, trained.last()),
        (1, Some(&0)),
        "the end of a text is the first token of a new vocabulary"
    );
    // By the tokenizer that is there, the same; of several texts each has its end; a folder is its files.
    fs::create_dir(path.join("texts")).unwrap();
    for name in ["a.txt", "b.txt"] {
        fs::copy(path.join("text.txt"), path.join("texts").join(name)).unwrap();
    }
    said(path, "tokenize texts -t data -o twice");
    assert_eq!(ids(&path.join("twice/train.bin")), [&trained[..], &trained].concat());
    assert!(!path.join("twice/val.bin").exists());
    let same = |name: &str| fs::read(path.join(name).join("tokenizer.json")).unwrap();
    assert!(same("twice") == same("data"));
    said(path, "tokenize text.txt -t data/tokenizer.json --end none -o bare");
    assert_eq!(ids(&path.join("bare/train.bin")), trained[..trained.len() - 1]);
    // The same texts give the same files.
    said(path, "tokenize text.txt --vocabulary 280 --val val.txt -o again");
    for name in ["train.bin", "val.bin", "tokenizer.json"] {
        assert!(
            fs::read(path.join("data").join(name)).unwrap()
                == fs::read(path.join("again").join(name)).unwrap()
        );
    }
    let lines: String = ["the cat", "the dog"]
        .map(|text| format!("{}\n", serde_json::json!({"text": text, "body": "a"})))
        .concat();
    fs::write(path.join("lines.jsonl"), lines).unwrap();
    said(path, "tokenize lines.jsonl -t data -o lines --quiet");
    assert_eq!(ids(&path.join("lines/train.bin")).iter().filter(|id| **id == 0).count(), 2);
    said(path, "tokenize lines.jsonl -t data -o bodies --field body");
    let body = ids(&path.join("bodies/train.bin"));
    assert_eq!((body.len(), body[1], body[3]), (4, 0, 0));
}

#[test]
fn a_model_of_a_known_tokenizer_reads_and_writes_text() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 20_000);
    let line = json(path, "tokenize text.txt --vocabulary 270 -o data --json");
    let vocabulary = line["vocabulary"].as_u64().unwrap() as u32;
    let run = train(path, &format!("data.kind=tokens data.path=data {SMALL} name=t"));
    run.succeeded();
    // The run stands on its own from here on.
    let tokenizer = fs::read(path.join("data/tokenizer.json")).unwrap();
    assert!(fs::read(path.join("runs/t/tokenizer.json")).unwrap() == tokenizer);
    let given =
        train(path, &format!("data.kind=tokens data.path=data data.vocabulary={vocabulary} {SMALL} name=u"));
    assert_eq!(given.digest(), run.digest(), "the vocabulary is that of the tokenizer");
    // It goes on when the tokenizer is gone from beside the ids, and so does a run that begins with its model.
    fs::remove_file(path.join("data/tokenizer.json")).unwrap();
    train(path, "--resume t steps=64").succeeded();
    // Whoever names all settings again, too, and has not counted: the run has.
    train(path, &format!("--resume t data.kind=tokens data.path=data data.vocabulary=auto {SMALL} steps=66"))
        .succeeded();
    refused(path, "train --resume t data.vocabulary=300", &["data.vocabulary: it was", "hint: "]);
    train(path, "--resume t --fork steps=3 name=forked").succeeded();
    assert!(fs::read(path.join("runs/forked/tokenizer.json")).unwrap() == tokenizer);
    fs::remove_dir_all(path.join("data")).unwrap();
    let text = said(path, "generate -q t --prompt the -t 20 --temperature 0");
    assert!(text.starts_with("the") && text.len() >= 23, "{text:?}");
    let line = json(path, "generate t --prompt the -t 20 --temperature 0 --json");
    assert_eq!(format!("{}{}", line["prompt"].as_str().unwrap(), line["text"].as_str().unwrap()), text);
    assert_eq!(line["ended"], false);
    let four = said(path, "generate -q t --prompt the -t 20 -n 4 --ranks 1");
    assert_eq!(
        (four.matches("\n---\n").count(), said(path, "generate -q t --prompt the -t 20 -n 4 --ranks 3")),
        (4, four)
    );
    // Without a prompt it is what comes behind the end of another text, which is not shown.
    let behind = said(path, "generate -q t -t 20 --temperature 0");
    assert!(!behind.contains("endoftext") && !behind.is_empty(), "{behind:?}");
    assert_eq!(said(path, "generate -q t --ids 0 -t 20 --temperature 0"), behind);
    // A text is measured as its ids are.
    said(path, "tokenize text.txt -t runs/t -o ids");
    let measured =
        ["text.txt", "ids/train.bin"].map(|data| json(path, &format!("eval t --data {data} --json")));
    assert!(measured[0]["tokens"].as_u64().unwrap() > 5_000, "{}", measured[0]);
    assert_eq!(measured[0]["loss"], measured[1]["loss"]);
    refused(path, "eval t --data runs/t/checkpoints", &["hint: "]);
    // What comes next behind lines of a text is text.
    fs::write(path.join("lines.txt"), "the cat\n\nsat on the\n").unwrap();
    let next = said(path, "predict t lines.txt");
    assert_eq!(next.lines().count(), 3, "{next}");
    let word = &said(path, "generate -q t --prompt the~cat -t 1 --temperature 0")["the cat".len()..];
    assert_eq!(
        next.lines().nth(1).unwrap().rsplit_once(',').unwrap().0.trim_matches('"'),
        word.trim_end_matches('\n')
    );
    let written = said(path, "predict t lines.txt -o out.jsonl --quiet")
        + &fs::read_to_string(path.join("out.jsonl")).unwrap();
    let first: Value = serde_json::from_str(written.lines().next().unwrap()).unwrap();
    assert_eq!(first["prediction"], word);
    said(path, "export t --to torch -o away");
    assert!(fs::read(path.join("away/tokenizer.json")).unwrap() == tokenizer);
    // Ids beyond what the model knows are an error, and no crash.
    let more = json(path, "tokenize text.txt --vocabulary 400 -o more --json");
    assert!(more["vocabulary"].as_u64().unwrap() > vocabulary.into(), "{more}");
    fs::copy(path.join("more/tokenizer.json"), path.join("runs/t/tokenizer.json")).unwrap();
    refused(path, "generate t --prompt the~cat~sat~on~the~mat.", &["the model knows those below", "hint: "]);
    refused(path, "predict t text.txt", &["the model knows those below", "hint: "]);
    fs::write(path.join("runs/t/tokenizer.json"), "{}").unwrap();
    refused(path, "generate t --prompt a", &["runs/t/tokenizer.json is no tokenizer", "hint: "]);
}

#[test]
fn a_vocabulary_of_more_than_65_536_tokens_has_wider_ids() {
    if !has_turn(0) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    // Words by their names, as many as Llama 2's twice, and what ends a text.
    let words: String = (0..70_000).map(|id| format!("\"t{id}\": {id},")).collect();
    let tokenizer = format!(
        r#"{{"version": "1.0", "pre_tokenizer": {{"type": "WhitespaceSplit"}},
            "added_tokens": [{{"id": 70000, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}}],
            "model": {{"type": "WordLevel", "unk_token": "t0", "vocab": {{{}}}}}}}"#,
        words.trim_end_matches(',')
    );
    fs::write(path.join("many.json"), tokenizer).unwrap();
    fs::write(path.join("text.txt"), "t69990 t9 t69992 t7\n".repeat(200)).unwrap();
    let line = json(path, "tokenize text.txt -t many.json -o data --json");
    assert_eq!((line["vocabulary"].as_u64(), line["train"]["tokens"].as_u64()), (Some(70_001), Some(801)));
    let bytes = fs::read(path.join("data/train.bin")).unwrap();
    let ids: Vec<u32> = bytes.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect();
    assert_eq!((ids.len(), &ids[..5], ids[800]), (801, &[69_990, 9, 69_992, 7, 69_990][..], 70_000));
    let small = "model.kind=gpt model.layers=1 model.width=16 model.heads=2 model.dropout=0 data.context=8 global_batch=8 micro_batch=2 optimizer.lr=0.02 steps=20";
    let settings = format!("data.kind=tokens data.path=data {small}");
    let run = train(path, &format!("{settings} name=t"));
    run.succeeded();
    assert_eq!(train(path, &format!("{settings} ranks=3 name=u")).digest(), run.digest());
    assert_eq!(
        said(path, "generate -q t --prompt t69990 -t 3 --temperature 0").trim_end(),
        "t69990 t9 t69992 t7"
    );
    let measured =
        ["text.txt", "data/train.bin"].map(|data| json(path, &format!("eval t --data {data} --json")));
    assert_eq!((measured[0]["tokens"].as_u64(), &measured[0]["loss"]), (Some(800), &measured[1]["loss"]));
    // A model may have ids that its tokenizer has not: the files are the tokenizer's.
    said(path, "tokenize text.txt --vocabulary 280 -o few");
    let wider = format!("data.kind=tokens data.path=few data.vocabulary=70000 {small} steps=2 name=wider");
    train(path, &wider).succeeded();
    assert!(json(path, "eval wider --data text.txt --json")["tokens"].as_u64().unwrap() > 800);
}

#[test]
fn a_text_ends_where_the_model_says_so() {
    let folder = folder();
    let path = folder.path();
    let lines: String = (0..400).map(|_| "{\"text\": \"ab\"}\n").collect();
    fs::write(path.join("lines.jsonl"), lines).unwrap();
    said(path, "tokenize lines.jsonl --vocabulary 257 -o data");
    train(path, &format!("data.kind=tokens data.path=data {SMALL} optimizer.lr=0.01 data.context=8 name=t"))
        .succeeded();
    let line = json(path, "generate t --prompt a -t 50 --temperature 0 --json");
    assert_eq!((line["text"].as_str(), line["ended"].as_bool()), (Some("b"), Some(true)), "{line}");
    assert_eq!(said(path, "generate -q t --prompt a -t 50 --temperature 0"), "ab");
    assert_eq!(said(path, "generate -q t -t 50 --temperature 0 -n 3"), "ab\n---\n".repeat(3));
    let (finished, _) = output(path, "generate t --prompt a -t 50 --temperature 0");
    finished.said("1 token by ");
}

#[test]
fn the_token_that_ends_a_text_goes_with_the_tokenizer() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("lines.jsonl"), "{\"text\": \"ab\"}\n".repeat(400)).unwrap();
    let settings = |folder: &str| fs::read(path.join(folder).join("tokenizer_config.json")).ok();
    let end = |folder: &str| {
        let settings: Value = serde_json::from_slice(&settings(folder).unwrap()).unwrap();
        settings["eos_token"].clone()
    };
    let line = json(path, "tokenize lines.jsonl --vocabulary 257 --end x -o data --json");
    assert_eq!((line["end"].as_str(), end("data").as_str()), (Some("x"), Some("x")));
    let run = train(
        path,
        &format!("data.kind=tokens data.path=data {SMALL} optimizer.lr=0.01 data.context=8 name=t"),
    );
    run.succeeded();
    let line = json(path, "generate t --prompt a -t 50 --temperature 0 --json");
    assert_eq!((line["text"].as_str(), line["ended"].as_bool()), (Some("b"), Some(true)), "{line}");
    // With the run, and away from it.
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::remove_file(path.join("data").join(name)).unwrap();
    }
    train(path, "--resume t --fork steps=3 name=forked").succeeded();
    fs::remove_dir_all(path.join("data")).unwrap();
    said(path, "export t --to torch -o away");
    for folder in ["runs/t", "runs/forked", "away"] {
        assert_eq!(end(folder).as_str(), Some("x"), "{folder}");
    }
    // Whoever takes the tokenizer takes its end, unless another one is named, or none.
    for (how, wanted) in [("", Some("x")), ("--end y", Some("y")), ("--end none", None)] {
        let line = json(path, &format!("tokenize lines.jsonl -t away -o data {how} --json"));
        assert_eq!((line["end"].as_str(), end("data").as_str()), (wanted, wanted), "{how}");
        let texts = line["train"]["tokens"].as_u64().unwrap();
        assert_eq!(texts, if wanted.is_some() { 1_200 } else { 800 }, "{how}");
        fs::remove_dir_all(path.join("data")).unwrap();
    }
    // What lies there is not written over, but where it is the same.
    fs::create_dir(path.join("data")).unwrap();
    fs::copy(path.join("away/tokenizer_config.json"), path.join("data/tokenizer_config.json")).unwrap();
    refused(
        path,
        "tokenize lines.jsonl -t away --end y -o data",
        &["data/tokenizer_config.json is there already", "hint: "],
    );
    assert_eq!(fs::read_dir(path.join("data")).unwrap().count(), 1);
    said(path, "tokenize lines.jsonl -t away -o data");
    said(path, "tokenize lines.jsonl --vocabulary 257 -o usual");
    assert_eq!(settings("usual"), None, "its end has a usual name");
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 2_000);
    fs::write(path.join("empty.txt"), "").unwrap();
    fs::write(path.join("binary.bin"), [0xff, 0xfe, 0, 1]).unwrap();
    fs::write(path.join("wrong.jsonl"), "{\"text\": \"a\"}\n{\"body\": \"a\"}\n").unwrap();
    fs::write(path.join("none.json"), "{}").unwrap();
    fs::create_dir(path.join("bare")).unwrap();
    for (arguments, words) in [
        ("tokenize text.txt -o data", &["--tokenizer"][..]),
        ("tokenize text.txt --vocabulary 100 -o data", &["257..=16777216"]),
        ("tokenize text.txt --vocabulary 300 -t none.json -o data", &["cannot be used with"]),
        ("tokenize text.txt -t none.json -o data", &["none.json is no tokenizer", "hint: "]),
        ("tokenize text.txt -t missing -o data", &["cannot read missing", "hint: "]),
        ("tokenize missing.txt --vocabulary 300 -o data", &["missing.txt does not exist", "hint: "]),
        ("tokenize binary.bin --vocabulary 300 -o data", &["binary.bin: byte 0 is no UTF-8", "hint: "]),
        (
            "tokenize wrong.jsonl --vocabulary 300 -o data",
            &["wrong.jsonl line 2: it has no \"text\", but body", "hint: "],
        ),
        ("tokenize empty.txt --vocabulary 300 -o data", &["there is no text for data/train.bin"]),
        ("tokenize bare --vocabulary 300 -o data", &["there is no file in bare"]),
        ("tokenize - --vocabulary 300 -o data", &["standard input can be read once", "hint: "]),
        ("tokenize /dev/null --vocabulary 300 -o data", &["/dev/null can be read once"]),
        ("tokenize text.txt --vocabulary 300 --end stop -o data", &["no token stop", "hint: "]),
        (
            "tokenize text.txt --vocabulary 300 --val empty.txt -o data",
            &["there is no text for data/val.bin"],
        ),
    ] {
        refused(path, arguments, words);
        assert!(!path.join("data").exists(), "{arguments}");
    }
    said(path, "tokenize text.txt --vocabulary 300 -o data");
    let before = fs::read(path.join("data/train.bin")).unwrap();
    refused(
        path,
        "tokenize text.txt --vocabulary 300 -o data",
        &["data/train.bin is there already", "hint: "],
    );
    assert!(fs::read(path.join("data/train.bin")).unwrap() == before);
    fs::remove_file(path.join("data/train.bin")).unwrap();
    refused(path, "tokenize text.txt --vocabulary 300 -o data", &["data/tokenizer.json is there already"]);
    let mut piped = dtrain(path, "tokenize - -t data -o data");
    piped.stdin(fs::File::open(path.join("text.txt")).unwrap());
    assert!(piped.output().unwrap().status.success());
    assert!(fs::read(path.join("data/train.bin")).unwrap() == before, "by the tokenizer that is there");
    // Whoever is killed leaves no part of a file.
    let mut killed = dtrain(path, "tokenize - -t data -o killed").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = killed.stdin.take().unwrap();
    let text = fs::read(path.join("text.txt")).unwrap();
    (0..300).for_each(|_| input.write_all(&text).unwrap());
    assert!(path.join("killed").is_dir(), "it has begun");
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(fs::read_dir(path.join("killed")).unwrap().count(), 0);
    // One that is no tokenizer at all is no vocabulary.
    fs::write(path.join("data/tokenizer.json"), "{}").unwrap();
    let run = train(path, &format!("data.kind=tokens data.path=data {SMALL}"));
    run.ended_with(2);
    run.said("tokenizer.json is no tokenizer of these ids");
}
