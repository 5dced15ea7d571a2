//! From folders of clips to predictions: the same bits for any number of ranks, readers and room for what is decoded.

use crate::harness::files::npy;
use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, Running, Signal, dtrain, finish, folder, json, output, said, signal, train, wait_until_gone,
};
use dtrain::data::Ffmpeg;
use image::{GrayImage, RgbImage};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
        ("predict moves film.mp4", &*format!("film.mp4: {}", no_video())),
        ("predict moves empty", "empty has no clips"),
        ("predict moves nowhere", "nowhere does not exist"),
        ("eval moves --data other", "no class of the training"),
        ("eval moves --data moved/right/00.npy", "moved/right/00.npy does not say of which class it is"),
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
    refused("", &format!("clips/nothing/film.mp4: {}", no_video()));
    fs::remove_dir_all(path.join("clips/nothing")).unwrap();
    RgbImage::new(4, 4).save(path.join("still.png")).unwrap();
    let (told, _) = output(path, "predict whole still.png");
    assert_ne!(told.code, Some(0));
    told.said("hint: ");
}

/// The ffmpeg that makes videos, and decodes them. Without one a test says that it is skipped.
fn ffmpeg() -> Option<PathBuf> {
    let here = || Ffmpeg::find().ok().map(|ffmpeg| ffmpeg.program().to_owned());
    let found = std::env::var_os("DTRAIN_TEST_FFMPEG").map(PathBuf::from).or_else(here);
    if found.is_none() {
        println!("skipped: no ffmpeg, neither on PATH nor in DTRAIN_TEST_FFMPEG");
    }
    found
}

/// What is said here of a file that is no video.
fn no_video() -> &'static str {
    match Ffmpeg::find() {
        Ok(_) => "ffmpeg cannot decode it: ",
        Err(_) => "videos are decoded by ffmpeg, which is not on PATH",
    }
}

/// `dtrain` that decodes videos by this program.
fn by(ffmpeg: &Path, folder: &Path, arguments: &str) -> Command {
    let mut command = dtrain(folder, arguments);
    command.env("DTRAIN_FFMPEG", ffmpeg);
    command
}

/// Runs it to its end; its standard output.
#[track_caller]
fn told(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A video without loss of these frames, and a folder of the frames that ffmpeg writes of it.
fn film(ffmpeg: &Path, pixels: &[u8], video: &Path, frames: &Path) {
    fs::create_dir_all(video.parent().unwrap()).unwrap();
    fs::create_dir_all(frames).unwrap();
    let mut command = Command::new(ffmpeg);
    command.args(["-v", "error", "-f", "rawvideo", "-pix_fmt", "gray", "-s", "12x12", "-r", "10"]);
    command.args(["-i", "pipe:0", "-c:v", "ffv1"]).arg(video).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(pixels).unwrap();
    assert!(child.wait().unwrap().success());
    let mut command = Command::new(ffmpeg);
    command.args(["-v", "error", "-nostdin", "-i"]).arg(video).arg(frames.join("%06d.png"));
    assert!(command.status().unwrap().success());
}

/// Sixteen clips, as videos and as folders of the frames that ffmpeg writes of them.
fn films(ffmpeg: &Path, path: &Path) {
    for number in 0..16usize {
        let (class, name) = [(0, "right"), (1, "left")][number % 2];
        let (start, dark) = ((number * 7 % 12) as u32, (number * 13 % 90) as u8);
        let pixels: Vec<u8> = (1..=FRAMES).flat_map(|at| frame(class, start, dark, at)).collect();
        let place = path.join(format!("frames/{name}/{number:02}"));
        film(ffmpeg, &pixels, &path.join(format!("videos/{name}/{number:02}.mkv")), &place);
    }
}

#[test]
fn videos_give_the_bits_of_their_frames_for_any_ranks_readers_and_kills_and_are_predicted() {
    if !has_turn(13) {
        return;
    }
    let Some(ffmpeg) = ffmpeg() else { return };
    let folder = folder();
    let path = folder.path();
    films(&ffmpeg, path);
    let run = RUN
        .replace("data.path=clips", "data.augment=[flip,shift:2]")
        .replace("global_batch=12 micro_batch=4 epochs=12", "global_batch=4 micro_batch=2 epochs=4");
    let frames = train(path, &format!("{run} data.path=frames ranks=1 name=frames"));
    frames.succeeded();
    let videos = |world: &str| by(&ffmpeg, path, &format!("train --json {run} data.path=videos {world}"));
    for world in [
        "ranks=1 workers=0 name=alone",
        "ranks=2 threads=1 workers=2 data.cache=none name=two",
        "ranks=3 isolation=thread data.cache=2KiB name=threads",
    ] {
        let run = finish(videos(world));
        run.succeeded();
        assert_eq!(run.digest(), frames.digest(), "{world}");
    }
    let mut hurt = Running::of(videos("ranks=2 threads=1 data.cache=none name=hurt"));
    hurt.wait_for_step(3);
    signal(Signal::KILL, hurt.rank_pids()[1]);
    let hurt = hurt.finish();
    hurt.succeeded();
    assert_eq!((hurt.digest(), hurt.summary()["lost_steps"].as_u64()), (frames.digest(), Some(0)));
    told(by(&ffmpeg, path, "audit hurt"));

    let table = told(by(&ffmpeg, path, "predict alone videos/left videos/right/00.mkv"));
    let of_frames = said(path, "predict alone frames/left frames/right/00");
    assert_eq!(table.replace("videos/", "frames/").replace(".mkv,", ","), of_frames);
    let work = by(&ffmpeg, path, "predict alone videos/left videos/right/00.mkv --ranks 2 --batch 1");
    assert_eq!(told(work), table);
    fs::copy(path.join("videos/right/00.mkv"), path.join("-00.mkv")).unwrap();
    let dashed = told(by(&ffmpeg, path, "predict alone -- -00.mkv"));
    assert_eq!(
        dashed.lines().nth(1),
        table.lines().last().map(|line| line.replace("videos/right/", "-")).as_deref()
    );
    let evaluated: Value =
        serde_json::from_str(&told(by(&ffmpeg, path, "eval alone --data videos --json"))).unwrap();
    let of_frames = json(path, "eval alone --data frames --json");
    for figure in ["samples", "loss", "accuracy"] {
        assert!(
            evaluated[figure].is_number() && evaluated[figure] == of_frames[figure],
            "{evaluated} {of_frames}"
        );
    }

    fs::write(path.join("text.mp4"), "film").unwrap();
    for (file, words) in
        [("text.mp4", "text.mp4: ffmpeg cannot decode it: "), ("nowhere.mp4", "nowhere.mp4 does not exist")]
    {
        let refused = finish(by(&ffmpeg, path, &format!("predict alone videos/left {file} -o x.csv")));
        assert_ne!(refused.code, Some(0));
        refused.said(words);
        refused.said("hint: ");
        assert!(!path.join("x.csv").exists());
    }
}

#[test]
fn a_process_that_is_killed_leaves_no_ffmpeg_behind() {
    let Some(ffmpeg) = ffmpeg() else { return };
    let folder = folder();
    let path = folder.path();
    films(&ffmpeg, path);
    let run = RUN.replace("data.path=clips", "").replace("epochs=12", "epochs=1");
    train(path, &format!("{run} data.path=frames ranks=1 name=frames")).succeeded();
    // Ten minutes, which this ffmpeg takes ten minutes to decode.
    let mut command = Command::new(&ffmpeg);
    command.args(["-v", "error", "-nostdin", "-f", "lavfi", "-i", "testsrc=size=12x12:rate=10:duration=600"]);
    command.args(["-c:v", "mpeg4"]).arg(path.join("videos/left/long.avi"));
    assert!(command.status().unwrap().success());
    let slow = path.join("slow");
    let script = format!("#!/bin/sh\necho $$ >>pids\nexec '{}' -re \"$@\"\n", ffmpeg.display());
    fs::write(&slow, script).unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [
        "predict frames videos/left/long.avi",
        &format!("train --json {run} data.path=videos ranks=2 name=videos"),
    ] {
        let running = Running::of(by(&slow, path, arguments));
        let pids = || -> Vec<u32> {
            let text = fs::read_to_string(path.join("pids")).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).collect()
        };
        let begun = Instant::now();
        while pids().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{arguments}: ffmpeg was not started");
            std::thread::yield_now();
        }
        signal(Signal::KILL, running.pid());
        drop(running);
        wait_until_gone(&pids());
        fs::remove_file(path.join("pids")).unwrap();
    }
}

#[test]
fn without_ffmpeg_videos_end_a_command_before_it_writes_and_everything_else_works() {
    let folder = folder();
    let path = folder.path();
    clips(path);
    let short = RUN.replace("epochs=12", "epochs=1");
    let without = |arguments: &str| -> Finished {
        let mut command = dtrain(path, arguments);
        command.env("PATH", "").env_remove("DTRAIN_FFMPEG");
        finish(command)
    };
    without(&format!("train --json {short} ranks=2 name=plain")).succeeded();
    fs::create_dir_all(path.join("films/left")).unwrap();
    fs::create_dir_all(path.join("films/right")).unwrap();
    ["left", "right"]
        .iter()
        .for_each(|name| fs::write(path.join("films").join(name).join("a.mp4"), "film").unwrap());
    for arguments in [
        "predict plain clips/left films/left/a.mp4 -o x.csv".to_owned(),
        "eval plain --data films".to_owned(),
        format!("train --json {short} data.path=films ranks=2 name=films"),
        format!("train --json {short} data.path=films data.broken=skip ranks=2 name=films"),
    ] {
        let refused = without(&arguments);
        assert_eq!(refused.code, Some(2), "{arguments}: {}", refused.stderr);
        refused.said("films/left/a.mp4: videos are decoded by ffmpeg, which is not on PATH");
        refused.said("hint: install ffmpeg, or name one with DTRAIN_FFMPEG=PATH; or write the frames");
        assert_eq!(refused.stderr.matches("error:").count(), 1, "{}", refused.stderr);
        assert!(!path.join("x.csv").exists() && !path.join("runs/films").exists(), "{arguments}");
    }
    let refused = finish(by(Path::new("/nowhere/ffmpeg"), path, "predict plain films/left/a.mp4"));
    refused.said("films/left/a.mp4: DTRAIN_FFMPEG=/nowhere/ffmpeg is no program");
}
