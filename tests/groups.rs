//! Samples of one subject, patient or video are held out together, and who was held out is said.

use crate::harness::{folder, json, output, said, train};
use image::{Rgb, RgbImage};
use serde_json::json;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Patients of ten rows each, who differ from each other by more than the ill from the well.
fn patients(path: &Path) {
    let mut text = "patient,age,pressure,outcome\n".to_owned();
    for row in 0..120 {
        let (patient, ill) = (row % 12, row / 12 % 2);
        let pressure = 10 * (patient * 7 % 12) + 3 * ill + row % 2;
        writeln!(text, "p{patient:02},{},{pressure},{}", patient * 5 % 12, ["well", "ill"][ill]).unwrap();
    }
    fs::write(path.join("patients.csv"), text).unwrap();
}

const RUN: &str =
    "data.kind=csv data.path=patients.csv data.group=patient epochs=2 global_batch=12 micro_batch=4";

#[test]
fn a_table_holds_whole_groups_out_for_any_ranks_and_seeds_and_says_which() {
    let folder = folder();
    let path = folder.path();
    patients(path);
    let one = train(path, &format!("{RUN} data.val_split=0.2 ranks=1 name=one"));
    one.succeeded();
    for (name, world) in [("two", "ranks=2 threads=1 workers=3"), ("three", "ranks=3 threads=1 workers=0")] {
        let run = train(path, &format!("{RUN} data.val_split=0.2 {world} name={name}"));
        run.succeeded();
        assert_eq!(run.digest(), one.digest(), "{world}");
    }
    // 3 of 12 groups are the least that have a fifth of the rows.
    let held = json(path, "eval one --json")["groups"].clone();
    assert_eq!(held.as_array().unwrap().len(), 3, "{held}");
    let seeded = train(path, &format!("{RUN} data.val_split=0.2 seed=9 ranks=1 name=seeded"));
    seeded.succeeded();
    let told = json(path, "eval seeded --json");
    assert_eq!((&told["groups"], told["samples"].as_u64()), (&held, Some(30)));

    let named = train(path, &format!("{RUN} data.held_out=[p03,p11] ranks=1 name=named"));
    named.succeeded();
    let told = json(path, "eval named --json");
    assert_eq!((&told["groups"], told["samples"].as_u64()), (&json!(["p03", "p11"]), Some(20)));
    assert!(said(path, "eval named").contains("2 of 12 held out: p03, p11"));
    // A prediction needs no group, and may have one.
    fs::write(path.join("new.csv"), "age,pressure\n3,40\n").unwrap();
    fs::write(path.join("same.csv"), "patient,age,pressure\nnew,3,40\n").unwrap();
    let predicted = said(path, "predict named new.csv");
    assert!(
        predicted.lines().count() == 2 && predicted == said(path, "predict named same.csv"),
        "{predicted}"
    );

    for (change, words) in [
        ("data.group=doctor", "has no column \"doctor\", only patient, age, pressure, outcome"),
        ("data.group=outcome", "column last of patients.csv is to be the label and the group"),
        ("data.held_out=[p03,p77]", "no sample is of group \"p77\", only of p00, p01,"),
        ("data.held_out=[p03] data.group=none", "it names groups, and data.group is none"),
        ("data.held_out=all data.val_path=patients.csv", "held_out is [all], expected scattered or last"),
    ] {
        let wrong = train(path, &format!("{RUN} {change} ranks=1 name=wrong"));
        assert_ne!(wrong.code, Some(0), "{change}");
        wrong.said(words);
        wrong.said("hint: ");
    }
    fs::write(path.join("one.csv"), "patient,a,b\np1,1,0\np1,2,1\np1,3,1\n,4,1\n").unwrap();
    let refused = |rows: &str, words: &str| {
        fs::write(path.join("one.csv"), rows).unwrap();
        let wrong = train(path, "data.kind=csv data.path=one.csv data.group=patient ranks=1 name=wrong");
        assert_ne!(wrong.code, Some(0), "{rows}");
        wrong.said(words);
        wrong.said("hint: ");
    };
    refused("patient,a,b\np1,1,0\n,2,1\n", "one.csv line 3, column \"patient\": the group is missing");
    refused("patient,a,b\np1,1,0\np1,2,1\n", "leaves no sample for training: there is one group");
}

#[test]
fn images_are_held_out_by_a_folder_or_by_their_names() {
    let folder = folder();
    let path = folder.path();
    for number in 0..24u8 {
        let (class, patient) = (["ill", "well"][usize::from(number % 2)], number / 2 % 4);
        let picture = RgbImage::from_pixel(8, 8, Rgb([number * 9, 200 * (number % 2), 7]));
        let place = path.join("scans").join(class).join(format!("p{patient}"));
        fs::create_dir_all(&place).unwrap();
        picture.save(place.join(format!("{number}.png"))).unwrap();
        let flat = path.join("flat").join(class);
        fs::create_dir_all(&flat).unwrap();
        picture.save(flat.join(format!("p{patient}_{number}.png"))).unwrap();
    }
    let run = "data.kind=images data.size=8 model=mlp epochs=1 global_batch=6 micro_batch=3 ranks=1";
    for (name, data) in
        [("folders", "data.path=scans data.group=folder"), ("names", "data.path=flat data.group=GROUP_*")]
    {
        train(path, &format!("{run} {data} data.held_out=[p2] name={name}")).succeeded();
        let told = json(path, &format!("eval {name} --json"));
        assert_eq!((&told["groups"], told["samples"].as_u64()), (&json!(["p2"]), Some(6)), "{name}");
    }
    for (data, words) in [
        ("data.path=flat data.group=folder", "says no group: it lies in the folder of its class"),
        ("data.path=scans data.group=GROUP_*", "says no group: its name is not as \"GROUP_*\""),
        ("data.path=scans data.group=patient", "is no pattern of names with one GROUP"),
    ] {
        let wrong = train(path, &format!("{run} {data} name=wrong"));
        assert_ne!(wrong.code, Some(0));
        wrong.said(words);
        wrong.said("hint: ");
    }
    assert_ne!(output(path, "eval wrong").0.code, Some(0));
}
