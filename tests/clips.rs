//! From folders of clips to predictions: the same bits for any number of ranks, readers and room for what is decoded.

use crate::harness::files::npy;
use crate::harness::{folder, json, output, said, train};
use image::{GrayImage, RgbImage};
use serde_json::Value;
use std::fs;
use std::path::Path;

const SIDE: u32 = 12;
/// Frames of a clip: enough that the tenth is before the second by the alphabet.
const FRAMES: u32 = 12;

/// A bar that moves by a pixel a frame, to the right or to the left.
fn frame(class: usize, start: u32, dark: u8, frame: u32) -> Vec<u8> {
    let at = if class == 0 { start + frame } else { start + 2 * SIDE - frame } % SIDE;
    let bar = |x: u32| [at, (at + 1) % SIDE, (at + 2) % SIDE].contains(&x);
    (0..SIDE * SIDE).map(|pixel| if bar(pixel % SIDE) { 230 } else { dark }).collect()
}

/// Half of the clips are folders of frames, half are arrays.
fn clips(path: &Path) {
    for number in 0..64usize {
        let (class, name) = [(0, "right"), (1, "left")][number % 2];
        let (start, dark) = ((number * 7 % 12) as u32, (number * 13 % 90) as u8);
        let frames = (1..=FRAMES).map(|at| frame(class, start, dark, at));
        let place = path.join("clips").join(name);
        fs::create_dir_all(&place).unwrap();
        if number / 2 % 2 == 0 {
            let bytes: Vec<u8> = frames.flatten().collect();
            let shape = [FRAMES, SIDE, SIDE].map(|side| side as usize);
            fs::write(place.join(format!("{number:02}.npy")), npy("|u1", &shape, &bytes)).unwrap();
            continue;
        }
        let place = place.join(format!("{number:02}"));
        fs::create_dir_all(&place).unwrap();
        for (at, pixels) in (1..).zip(frames) {
            let picture = GrayImage::from_raw(SIDE, SIDE, pixels).unwrap();
            picture.save(place.join(format!("f{at}.png"))).unwrap();
        }
    }
}

const RUN: &str = "data.kind=clips data.path=clips data.size=12 data.frames=4 data.frame_stride=2 data.colors=gray data.val_split=0.25 \
                   model.channels=[8,8] model.hidden=[16] model.dropout=0 optimizer.lr=0.01 global_batch=12 micro_batch=4 epochs=12";

#[test]
fn a_folder_of_clips_becomes_a_model_that_tells_directions_apart() {
    let folder = folder();
    let path = folder.path();
    clips(path);
    let run = train(path, &format!("{RUN} ranks=2 threads=1 name=moves"));
    run.succeeded();
    let accuracy = run.summary()["val_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
    // The same clips, wherever they lie.
    fs::rename(path.join("clips"), path.join("moved")).unwrap();
    let told = json(path, "eval moves --data moved --json");
    assert_eq!(told["samples"].as_u64(), Some(64));
    assert!(told["accuracy"].as_f64().unwrap() > 0.9, "{told}");
    let table = said(path, "predict moves moved/left moved/right/00.npy moved/right/02");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("file,prediction,p(left),p(right)", 1 + 32 + 2));
    assert!(lines[1].starts_with("moved/left/01.npy,") && lines[2].starts_with("moved/left/03,"), "{table}");
    assert!(
        lines[33].starts_with("moved/right/00.npy,") && lines[34].starts_with("moved/right/02,"),
        "{table}"
    );
    for work in ["--ranks 1", "--ranks 3 --batch 1", "--batch 7"] {
        assert_eq!(
            said(path, &format!("predict moves moved/left moved/right/00.npy moved/right/02 {work}")),
            table
        );
    }

    let write = |name: &str, bytes: &[u8]| fs::write(path.join(name), bytes).unwrap();
    write("short.npy", &npy("|u1", &[6, 12, 12], &[7; 6 * 144]));
    write("flat.npy", &npy("|u1", &[12, 12], &[7; 144]));
    write("floats.npy", &npy("<f4", &[1, 12, 12], &[0; 576]));
    write("cut.npy", &npy("|u1", &[12, 12, 12], &[7; 1000]));
    write("film.mp4", b"film");
    fs::create_dir_all(path.join("empty")).unwrap();
    fs::create_dir_all(path.join("other/unknown")).unwrap();
    for (arguments, words) in [
        ("predict moves moved/left short.npy -o x.csv", "short.npy has 6 frames, and 7 are needed"),
        (
            "predict moves moved/left flat.npy -o x.csv",
            "flat.npy has shape [12, 12], and a clip is [frames, height, width]",
        ),
        ("predict moves floats.npy", "floats.npy holds elements of type 4 bytes each, expected uint8"),
        ("predict moves moved/left cut.npy -o x.csv", "cut.npy holds"),
        ("predict moves film.mp4", "film.mp4 is a video, and clips are folders of frames"),
        ("predict moves empty", "empty has no clips"),
        ("predict moves nowhere", "nowhere does not exist"),
        ("eval moves --data other", "no class of the training"),
    ] {
        let (told, _) = output(path, arguments);
        assert_ne!(told.code, Some(0), "{arguments}");
        told.said(words);
        told.said("hint: ");
        assert!(!path.join("x.csv").exists());
    }
}

#[test]
fn the_bits_of_clips_do_not_depend_on_ranks_readers_or_the_room() {
    let folder = folder();
    let path = folder.path();
    clips(path);
    let augmented = format!("{RUN} data.augment=[flip,shift:2,crop:10]").replace("epochs=12", "epochs=2");
    let one = train(path, &format!("{augmented} ranks=1 name=one"));
    one.succeeded();
    for (name, world) in [
        ("two", "ranks=2 threads=1 workers=0 data.cache=none"),
        ("three", "ranks=3 threads=1 workers=3 data.cache=2KiB"),
        ("threads", "ranks=5 isolation=thread checkpoint.every=none"),
    ] {
        let run = train(path, &format!("{augmented} {world} name={name}"));
        run.succeeded();
        assert_eq!(run.digest(), one.digest(), "{world}");
    }
}

#[test]
fn a_broken_clip_ends_a_run_with_its_name_or_is_left_out_and_names_may_have_line_breaks() {
    let folder = folder();
    let path = folder.path();
    clips(path);
    fs::rename(path.join("clips/left"), path.join("clips/le\nft")).unwrap();
    let short = RUN.replace("epochs=12", "epochs=1");
    let place = path.join("clips/right/02");
    let frame = fs::read(place.join("f5.png")).unwrap();
    let refused = |arguments: &str, words: &str| {
        let wrong = train(path, &format!("{short} {arguments} ranks=1 name=wrong"));
        assert_ne!(wrong.code, Some(0), "{arguments}");
        wrong.said(words);
        wrong.said("hint: ");
        let _ = fs::remove_dir_all(path.join("runs/wrong"));
    };
    fs::write(place.join("f5.png"), &frame[..frame.len() / 2]).unwrap();
    refused("data.val_split=0", "clips/right/02/f5.png");
    let run = train(path, &format!("{short} data.broken=skip ranks=2 threads=1 name=whole"));
    run.succeeded();
    let (told, _) = output(path, "predict whole clips -o out.jsonl");
    assert_ne!(told.code, Some(0));
    told.said("clips/right/02/f5.png");
    assert!(!path.join("out.jsonl").exists());
    fs::write(place.join("f5.png"), &frame).unwrap();
    said(path, "predict whole clips -o out.jsonl");
    let lines = fs::read_to_string(path.join("out.jsonl")).unwrap();
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(lines.lines().count() == 64 && first["probabilities"]["le\nft"].is_number(), "{first}");

    refused("data.frames=7", "frames, and 13 are needed");
    refused("data.size=[8,8,8]", "data.size");
    refused("loss.kind=mse", "mse needs numbers as targets, and clips has classes");
    refused("model.kind=cnn", "write model.kind=cnn3d, or mlp");
    fs::create_dir_all(path.join("clips/nothing")).unwrap();
    refused("", "clips/nothing has no clips");
    fs::write(path.join("clips/nothing/film.mp4"), "film").unwrap();
    refused("", "clips/nothing/film.mp4 is a video");
    fs::remove_dir_all(path.join("clips/nothing")).unwrap();
    RgbImage::new(4, 4).save(path.join("still.png")).unwrap();
    let (told, _) = output(path, "predict whole still.png");
    assert_ne!(told.code, Some(0));
    told.said("hint: ");
}
