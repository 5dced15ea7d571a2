//! From folders of images to predictions: the same bits for any number of ranks, readers and room for what is decoded.

use crate::harness::turn::has_turn;
use crate::harness::{Running, Signal, audit_is_clean, folder, json, output, said, signal, train};
use image::{Rgb, RgbImage};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Bars that stand and bars that lie, in colours and at places that say nothing.
fn images(path: &Path) {
    let mut state = 5u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for number in 0..96 {
        let (class, ending) = ([("lies", "png"), ("stands", "jpg")])[number % 2];
        let folder = path.join("bars").join(class);
        fs::create_dir_all(&folder).unwrap();
        let [height, width] = [20 + next(8) as u32, 20 + next(8) as u32];
        let (at, dark, bright) = (4 + next(10) as u32, next(80) as u8, 170 + next(80) as u8);
        let is_bar = |x: u32, y: u32| (at..at + 4).contains(if class == "lies" { &y } else { &x });
        let picture =
            RgbImage::from_fn(width, height, |x, y| Rgb([if is_bar(x, y) { bright } else { dark }; 3]));
        picture.save(folder.join(format!("{number:03}.{ending}"))).unwrap();
    }
}

const RUN: &str = "data.kind=images data.path=bars data.size=16 data.val_split=0.25 model.channels=[8] model.hidden=[16] \
                   model.dropout=0 optimizer.lr=0.01 global_batch=12 micro_batch=4 epochs=10";

#[test]
fn a_folder_becomes_a_model_that_predicts_folders_and_files() {
    let folder = folder();
    let path = folder.path();
    images(path);
    let run = train(path, &format!("{RUN} ranks=2 threads=1 name=bars"));
    run.succeeded();
    let accuracy = run.summary()["val_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
    let held_out = json(path, "eval bars --json");
    // The same files, wherever they lie.
    fs::rename(path.join("bars"), path.join("moved")).unwrap();
    let all = json(path, "eval bars --data moved --json");
    assert_eq!((held_out["samples"].as_u64(), all["samples"].as_u64()), (Some(24), Some(96)));
    let table = said(path, "predict bars moved/stands moved/lies/000.png");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("file,prediction,p(lies),p(stands)", 1 + 48 + 1));
    assert!(lines[1].starts_with("moved/stands/001.jpg,") && lines[49].starts_with("moved/lies/000.png,"));
    let right = lines[1..49].iter().filter(|line| line.split(',').nth(1) == Some("stands")).count();
    assert!(right > 40, "{right}");
    for work in ["--ranks 1", "--ranks 3 --batch 1", "--batch 7"] {
        assert_eq!(output(path, &format!("predict bars moved/stands moved/lies/000.png {work}")).1, table);
    }
    output(path, "predict bars moved/lies -o out.jsonl").0.succeeded();
    let first = fs::read_to_string(path.join("out.jsonl")).unwrap().lines().next().unwrap().to_owned();
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["file"], "moved/lies/000.png");

    for (arguments, words) in [
        ("predict bars moved/stands broken.jpg -o x.csv", "broken.jpg"),
        ("predict bars nowhere.png", "nowhere.png does not exist"),
        ("predict bars empty", "empty has no images"),
        ("eval bars --data moved --targets y.npy", "--targets is for arrays"),
        ("eval bars --data other", "no class of the training images"),
        ("eval bars", "does not exist"),
    ] {
        fs::create_dir_all(path.join("empty")).unwrap();
        fs::create_dir_all(path.join("other/unknown")).unwrap();
        fs::write(path.join("broken.jpg"), "no image").unwrap();
        let (told, _) = output(path, arguments);
        told.said(words);
        told.said("hint: ");
        assert!(!path.join("x.csv").exists());
    }
}

#[test]
fn the_bits_do_not_depend_on_ranks_readers_the_room_or_kills() {
    if !has_turn(1) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    images(path);
    let augmented = format!("{RUN} data.augment=[flip,shift:2]");
    let one = train(path, &format!("{augmented} ranks=1 name=one"));
    one.succeeded();
    for (name, world) in [
        ("two", "ranks=2 threads=1 workers=0 data.cache=none"),
        ("three", "ranks=3 threads=1 workers=3 data.cache=10KiB"),
        ("threads", "ranks=5 isolation=thread checkpoint.every=none"),
    ] {
        let run = train(path, &format!("{augmented} {world} name={name}"));
        run.succeeded();
        assert_eq!(run.digest(), one.digest(), "{world}");
    }
    let mut hurt = Running::start(path, &format!("{augmented} ranks=3 threads=1 name=hurt"));
    hurt.wait_for_step(8);
    signal(Signal::KILL, hurt.rank_pids()[1]);
    let hurt = hurt.finish();
    hurt.succeeded();
    assert_eq!((hurt.digest(), hurt.summary()["lost_steps"].as_u64()), (one.digest(), Some(0)));
    audit_is_clean(path, "hurt");
}

#[test]
fn augmentations_have_one_set_of_bits_and_what_is_predicted_is_cut_as_validation_is() {
    let folder = folder();
    let path = folder.path();
    images(path);
    let augment = "data.augment=[flip,\"resized-crop:12\",\"rand-augment:2,5\",jitter,erase,mixup,cutmix]";
    // One string is cut at its spaces, and a list has none.
    let run = format!("{RUN} {augment} epochs=3");
    let one = train(path, &format!("{run} ranks=1 name=one"));
    one.succeeded();
    for (name, world) in
        [("three", "ranks=3 threads=1 workers=3 data.cache=10KiB"), ("two", "ranks=2 workers=0")]
    {
        let run = train(path, &format!("{run} {world} name={name}"));
        run.succeeded();
        assert_eq!(run.digest(), one.digest(), "{world}");
    }
    let table = said(path, "predict three bars/stands bars/lies/000.png");
    assert_eq!(table.lines().count(), 1 + 48 + 1);
    assert_eq!(said(path, "predict one bars/stands bars/lies/000.png --ranks 2 --batch 3"), table);
    assert_eq!(json(path, "eval one --data bars --json")["samples"].as_u64(), Some(96));
    let wrong = train(path, &format!("{RUN} data.augment=[\"crop:17\"] name=wrong"));
    wrong.ended_with(2);
    wrong.said("augmentation crop:17x17 does not fit samples of shape [3, 16, 16]");
    wrong.said("hint: ");
}

#[test]
fn files_in_one_folder_with_a_table_of_labels_make_the_bits_of_a_folder_for_each_class() {
    let folder = folder();
    let path = folder.path();
    images(path);
    let by_folders = train(path, &format!("{RUN} ranks=1 name=folders"));
    by_folders.succeeded();
    fs::create_dir(path.join("flat")).unwrap();
    let mut table = String::from("photo;bar\n");
    for class in ["lies", "stands"] {
        let mut names: Vec<String> = fs::read_dir(path.join("bars").join(class))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for name in names {
            fs::rename(path.join("bars").join(class).join(&name), path.join("flat").join(&name)).unwrap();
            table += &format!("{};{class}\n", name.split('.').next().unwrap());
        }
    }
    fs::write(path.join("bars.csv"), &table).unwrap();
    let run = RUN.replace("data.path=bars", "data.path=flat data.labels=bars.csv");
    for world in ["ranks=1", "ranks=3 threads=1 workers=2"] {
        let by_table = train(path, &format!("{run} {world} name={}", &world[..7].replace('=', "-")));
        by_table.succeeded();
        assert_eq!(by_table.digest(), by_folders.digest(), "{world}");
    }
    let told = said(path, "predict ranks-3 flat/000.png flat/001.jpg");
    assert_eq!(told.lines().next(), Some("file,prediction,p(lies),p(stands)"));

    fs::write(path.join("wrong.csv"), format!("{table}999;lies\n")).unwrap();
    for (words, code, told) in [
        ("data.labels=wrong.csv", 2, "wrong.csv line 98: \"999\" is not in "),
        ("data.labels=none.csv", 2, "none.csv does not exist"),
        ("data.file_column=name", 2, "has no column \"name\", only photo, bar"),
        ("data.val_path=flat", 2, "data.val_labels"),
        ("data.labels=none data.file_column=photo", 2, "it is about data.labels"),
        ("data.group=column", 2, "has no column \"column\""),
    ] {
        let wrong = train(path, &format!("{run} {words} name=wrong"));
        wrong.ended_with(code);
        wrong.said(told);
        wrong.said("hint: ");
        assert!(!path.join("runs/wrong").exists(), "{words}");
    }
}

#[test]
fn a_broken_image_ends_a_run_with_its_name_or_is_left_out() {
    let folder = folder();
    let path = folder.path();
    images(path);
    fs::write(path.join("bars/lies/099.png"), "no image").unwrap();
    let run = train(path, &format!("{RUN} ranks=2 threads=1 name=broken"));
    run.ended_with(1);
    run.said("bars/lies/099.png");
    run.said("data.broken=skip");
    let run = train(path, &format!("{RUN} data.broken=skip ranks=2 threads=1 name=whole"));
    run.succeeded();
    for (words, told) in [
        ("data.size=[8,8,8]", "data.size"),
        ("data.path=nowhere", "nowhere does not exist"),
        ("data.colors=cmyk", "data.colors"),
    ] {
        let key = words.split('=').next().unwrap();
        let rest: Vec<&str> = RUN.split(' ').filter(|word| !word.starts_with(key)).collect();
        let wrong = train(path, &format!("{} {words} name=wrong", rest.join(" ")));
        wrong.ended_with(2);
        wrong.said(told);
    }
}
