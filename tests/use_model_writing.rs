//! `dtrain generate`: a model of texts goes on with one, token by token, as it says what comes next.

use crate::harness::files::npy;
use crate::harness::gpus::Host;
use crate::harness::turn::has_turn;
use crate::harness::{GPT, dtrain, folder, output, refused, said, train, write_text, write_tokens};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

const SMALL: &str = "model.layers=2 model.width=16 model.heads=2 data.context=32 steps=60";

/// What is written, to the last byte.
#[track_caller]
fn bytes(folder: &Path, arguments: &str) -> Vec<u8> {
    let written = dtrain(folder, &format!("generate -q {arguments}")).output().unwrap();
    assert_eq!((written.status.code(), written.stderr.len()), (Some(0), 0), "{arguments}");
    written.stdout
}

/// The same as text: a model that knows little writes any bytes.
#[track_caller]
fn generate(folder: &Path, arguments: &str) -> String {
    String::from_utf8_lossy(&bytes(folder, arguments)).into_owned()
}

/// The token that the model is surest of, behind each token of sequences of one length, by `dtrain predict`.
fn surest(folder: &Path, run: &str, sequences: &[&[u8]], vocabulary: usize) -> Vec<u8> {
    let time = sequences[0].len();
    fs::write(folder.join("ids.npy"), npy("|u1", &[sequences.len(), time], &sequences.concat())).unwrap();
    said(folder, &format!("predict {run} ids.npy -o logits.npy"));
    let bytes = fs::read(folder.join("logits.npy")).unwrap();
    let logits: Vec<f32> =
        bytes[128..].chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let best = |outputs: &[f32]| (0..outputs.len()).rev().max_by(|a, b| outputs[*a].total_cmp(&outputs[*b]));
    logits.chunks(vocabulary).map(|outputs| best(outputs).unwrap() as u8).collect()
}

#[test]
fn each_byte_of_a_text_is_the_one_that_is_predicted_also_beyond_what_the_model_sees() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 6_000);
    for kind in ["gpt", "gpt2", "llama"] {
        train(path, &format!("data.kind=text data.path=text.txt model.kind={kind} {SMALL} name={kind}"))
            .succeeded();
        let text = bytes(path, &format!("{kind} --prompt the -t 60 --temperature 0"));
        assert_eq!((&text[..3], text.len()), (&b"the"[..], 63), "{text:?}");
        // While all of it is seen, in windows of 16 and of 32.
        let behind = surest(path, kind, &[&text[..32]], 256);
        assert_eq!(behind[2..], text[3..33], "{text:?}");
        // And when the model sees its end alone.
        let ends: Vec<&[u8]> = (1..31).map(|from| &text[from..from + 32]).collect();
        let behind = surest(path, kind, &ends, 256);
        let last: Vec<u8> = behind.chunks(32).map(|behind| behind[31]).collect();
        assert_eq!(last, text[33..], "{text:?}");
        assert_eq!(bytes(path, &format!("{kind} --prompt the -t 60 --top-k 1 --seed 99")), text);
        assert_eq!(bytes(path, &format!("{kind} --prompt the -t 60 --top-p 1e-9")), text);
    }
}

#[test]
fn a_long_prompt_is_read_in_pieces_and_what_comes_next_is_what_is_predicted() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 6_000);
    train(path, &format!("data.kind=text data.path=text.txt {SMALL} data.context=160 name=t")).succeeded();
    let prompt = &fs::read_to_string(path.join("text.txt")).unwrap()[..150];
    fs::write(path.join("prompt"), prompt).unwrap();
    let mut piped = dtrain(path, "generate -q t -t 30 --temperature 0 --prompt -");
    piped.stdin(fs::File::open(path.join("prompt")).unwrap());
    let text = piped.output().unwrap().stdout;
    assert_eq!((&text[..150], text.len()), (prompt.as_bytes(), 180));
    let behind = surest(path, "t", &[&text[..160]], 256);
    assert_eq!(behind[149..], text[150..161], "all of it is seen");
    let ends: Vec<&[u8]> = (1..20).map(|from| &text[from..from + 160]).collect();
    let behind = surest(path, "t", &ends, 256);
    let last: Vec<u8> = behind.chunks(160).map(|behind| behind[159]).collect();
    assert_eq!(last, text[161..], "its end alone is seen");
    // Several at once have the pieces of another length.
    let mut several = dtrain(path, "generate -q t -t 30 --temperature 0 -n 3 --ranks 1 --prompt -");
    several.stdin(fs::File::open(path.join("prompt")).unwrap());
    assert_eq!(several.output().unwrap().stdout, [&text[..], b"\n---\n"].concat().repeat(3));
}

#[test]
fn a_text_depends_on_its_prompt_the_seed_and_its_number_alone() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 6_000);
    train(path, &format!("data.kind=text data.path=text.txt {SMALL} name=t")).succeeded();
    let five = generate(path, "t -n 5 -t 50 --prompt a --ranks 1");
    assert_eq!(five.matches("\n---\n").count(), 5, "{five}");
    let exact = bytes(path, "t -n 5 -t 50 --prompt a --ranks 1");
    for how in ["--ranks 2", "--ranks 3 --batch 1", "--ranks 9", "--batch 2"] {
        assert!(bytes(path, &format!("t -n 5 -t 50 --prompt a {how}")) == exact, "{how}");
    }
    // A prompt that several texts have is read once, in whatever parts they are written.
    let exact = bytes(path, "t -n 5 -t 30 --prompt a~day~of~rain --ranks 1");
    for how in ["--ranks 1 --batch 1", "--ranks 1 --batch 2", "--ranks 2 --batch 2"] {
        assert!(bytes(path, &format!("t -n 5 -t 30 --prompt a~day~of~rain {how}")) == exact, "{how}");
    }
    assert!(five.starts_with(&generate(path, "t -n 3 -t 50 --prompt a")));
    let one = generate(path, "t -t 50 --prompt a");
    assert!(five.starts_with(&format!("{one}\n---\n")), "a file has nothing but the text: {one:?}");
    assert_ne!(generate(path, "t -t 50 --prompt a --seed 8"), one);
    let lines = generate(path, "t -n 5 -t 50 --prompt a --json");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (number, (line, text)) in lines.iter().zip(five.split("\n---\n")).enumerate() {
        assert_eq!((line["sample"].as_u64(), line["prompt"].as_str()), (Some(number as u64), Some("a")));
        assert_eq!(format!("a{}", line["text"].as_str().unwrap()), text);
    }
    assert_eq!(lines.len(), 5);
    let mut piped = dtrain(path, "generate -q t -t 50 --prompt -");
    fs::write(path.join("prompt"), "a").unwrap();
    piped.stdin(fs::File::open(path.join("prompt")).unwrap()).stderr(Stdio::null());
    assert_eq!(String::from_utf8_lossy(&piped.output().unwrap().stdout), one);
}

#[test]
fn whoever_has_read_enough_ends_it_and_what_cannot_be_is_refused() {
    if !has_turn(8) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 6_000);
    write_tokens(&path.join("ids"), 4_000);
    train(path, &format!("data.kind=text data.path=text.txt {SMALL} name=t")).succeeded();
    train(path, &format!("data.kind=tokens data.path=ids data.vocabulary=300 {SMALL} name=ids")).succeeded();
    train(path, "data=digits model.kind=mlp steps=3 name=digits").succeeded();
    for how in ["-t 16000000", "-t 200 -n 100000", "-t 100 -n 100000 --json"] {
        let mut command = dtrain(path, &format!("generate t {how}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{how}: {}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(ended.stderr, b"", "{how}");
    }
    let ids = generate(path, "ids --ids 7,299 -t 10 -n 2");
    for line in ids.lines() {
        let numbers: Vec<u32> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        assert_eq!((&numbers[..2], numbers.len()), (&[7, 299][..], 12), "{ids}");
        assert!(numbers.iter().all(|number| *number < 300));
    }
    let (finished, line) = output(path, "generate ids --ids 7 -t 3 --json");
    finished.succeeded();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((line["prompt"].to_string(), line["text"].as_array().unwrap().len()), ("[7]".into(), 3));
    for (arguments, words) in [
        ("generate digits", &["no model of texts", "hint: `dtrain predict`"][..]),
        ("generate t --ids 4", &["are bytes", "hint: write the text"]),
        ("generate ids", &["token ids", "hint: write the ids"]),
        ("generate ids --ids 300", &["300 is no token", "below 300"]),
        ("generate t --prompt=", &["the prompt is empty"]),
        ("generate t --temperature=-1", &["at least 0"]),
        ("generate t --temperature warm", &["at least 0"]),
        ("generate t --top-p 0", &["above 0 and at most 1"]),
        ("generate t --top-k 0", &["--top-k"]),
        ("generate t -t 0", &["--tokens"]),
        ("generate nope", &["no run nope"]),
        ("generate t --devices cuda:0", &["hint:"]),
    ] {
        refused(path, arguments, words);
    }
}

#[test]
fn a_text_is_written_on_a_gpu_as_on_the_cores() {
    if !has_turn(17) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    machine.train(&format!("{GPT} steps=6 name=gpt devices=cpu")).succeeded();
    let written = |how: &str| {
        let mut command = machine.equip(dtrain(machine.path(), &format!("generate gpt -q -n 3 -t 20 {how}")));
        let ended = command.output().expect("it starts");
        assert!(ended.status.success(), "{how}: {}", String::from_utf8_lossy(&ended.stderr));
        ended.stdout
    };
    let cores = written("--devices cpu");
    assert!(cores.len() > 60);
    for how in ["--devices cuda:0", "--devices cuda:0,1"] {
        assert!(written(how) == cores, "{how}");
    }
}
