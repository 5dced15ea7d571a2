//! Tar archives of pictures, judged by their pixels: the same as in folders; and what is wrong with an archive, by file and place.

mod support;

use dtrain_data::{Broken, ImageFiles, InputSpec, Normalise, Opened, ShardsOptions, Source, ValSplit, open};
use image::{ImageFormat, Rgb, RgbImage};
use std::fs;
use std::io::Cursor;
use support::{file, folders, gzip, refused, shards, values_and_classes};
use tar::{Builder, EntryType, Header};

fn opened(options: ShardsOptions) -> Opened {
    open(&Source::Tar(options)).expect("the archives are as they should be")
}

/// A picture whose colours follow from a number.
fn picture(number: u8, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let colour = |x: u32, y: u32| Rgb([number, x as u8 * 30, y as u8 * 30]);
    RgbImage::from_fn(6, 5, colour).write_to(&mut bytes, format).expect("an image");
    bytes.into_inner()
}

fn png(number: u8) -> Vec<u8> {
    picture(number, ImageFormat::Png)
}

/// A header of a file.
fn header(size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

/// An archive of these members.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in members {
        builder.append_data(&mut header(bytes.len() as u64), name, *bytes).expect("a member");
    }
    builder.into_inner().expect("an archive")
}

/// The first red pixel and the class of each sample.
fn seen(opened: &Opened) -> Vec<(u32, u32)> {
    let (values, classes) = values_and_classes(&*opened.train);
    let width = values.len() / classes.len();
    values.chunks(width).map(|sample| sample[0] as u32).zip(classes).collect()
}

#[test]
fn a_shard_has_the_pixels_and_classes_of_the_same_files_in_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (mut builder, mut number) = (Builder::new(Vec::new()), 0);
    for class in 0..3 {
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP] {
            number += 1;
            let ending = format.extensions_str()[0];
            let bytes = picture(20 * number, format);
            let place = folder.path().join(format!("photos/{class}"));
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(format!("{number}.{ending}")), &bytes).unwrap();
            let name = format!("{class}/{number}");
            let mut add = |ending: &str, bytes: &[u8]| {
                let mut header = header(bytes.len() as u64);
                builder.append_data(&mut header, format!("{name}.{ending}"), bytes).unwrap();
            };
            add(ending, &bytes);
            add("cls", format!("{class}\n").as_bytes());
        }
    }
    let shard = file(folder.path(), "all.tar", builder.into_inner().unwrap());
    let by_folders = open(&Source::Images(folders(&folder.path().join("photos")))).unwrap();
    for cache in [0, 100, 1 << 20] {
        let by_shard = opened(ShardsOptions { cache, ..shards(&shard) });
        assert_eq!(values_and_classes(&*by_shard.train), values_and_classes(&*by_folders.train));
        assert_eq!(by_shard.class_names, ["0", "1", "2"]);
        assert_eq!(by_shard.train.spec().input, InputSpec::Values { shape: vec![3, 4, 4] });
    }

    let preparation = by_folders.preparation.expect("there is one");
    let files = ImageFiles::open(&shard, &preparation).unwrap().expect("an archive");
    assert_eq!(files.files()[3], shard.join("1/4.jpg"));
    assert_eq!(files.read(0..9, &preparation).unwrap(), values_and_classes(&*by_folders.train).0);
    let (files, classes) = ImageFiles::labelled(&shard, &preparation).unwrap();
    assert_eq!((files.files().len(), &classes[..]), (9, &[0, 0, 0, 1, 1, 1, 2, 2, 2][..]));
}

#[test]
fn shards_come_in_the_order_of_their_names_and_samples_in_that_of_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let long = format!("{}/{}", "d".repeat(150), "n".repeat(300));
    let members = [
        ("z.cls", &b" 1 \n"[..]),
        ("README.md", b"no sample"),
        ("z.PNG", &png(10)),
        ("dir/a.seg.png", b"of something else"),
        ("dir/a.json", br#"{"label": 0, "class": 9, "caption": "x"}"#),
        ("dir/.hidden.png", b""),
        ("dir/a.png", &png(20)),
        (&format!("{long}.png"), &png(30)),
        (&format!("{long}.json"), br#"{"class": " 2 "}"#),
    ];
    file(path, "b.tar", archive(&members));
    let pax = [format!("{long}.cls"), format!("{long}.png")];
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in pax.iter().zip([b"3".to_vec(), png(40)]) {
        builder.append_pax_extensions([("path", name.as_bytes()), ("mtime", &b"1.5"[..])]).unwrap();
        let mut header = Header::new_ustar();
        header.set_path("short").unwrap();
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        builder.append(&header, &bytes[..]).unwrap();
    }
    let mut link = Header::new_gnu();
    link.set_entry_type(EntryType::Directory);
    link.set_size(0);
    builder.append_data(&mut link, "folder", &[][..]).unwrap();
    file(path, "a.TAR", builder.into_inner().unwrap());
    file(path, "notes.txt", "no shard");
    let all = opened(shards(path));
    assert_eq!(seen(&all), [(40, 3), (10, 1), (20, 0), (30, 2)]);
    assert_eq!(all.class_names, ["0", "1", "2", "3"]);
    assert_eq!(opened(ShardsOptions { classes: Some(7), ..shards(path) }).class_names.len(), 7);
}

#[test]
fn shards_are_held_out_by_a_share_a_path_or_a_folder_beside() {
    let folder = tempfile::tempdir().unwrap();
    let shard = |name: &str, count: u8| {
        let pictures: Vec<_> = (0..count).map(png).collect();
        let names: Vec<_> = (0..count).map(|at| [format!("{at}.png"), format!("{at}.cls")]).collect();
        let members: Vec<(&str, &[u8])> = (0..usize::from(count))
            .flat_map(|at| [(&*names[at][0], &*pictures[at]), (&*names[at][1], &b"01"[at % 2..=at % 2])])
            .collect();
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, archive(&members)).unwrap();
        path
    };
    let (one, other) = (shard("train/x.tar", 10), shard("other.tar", 4));
    let counts = |options| {
        let opened = opened(options);
        (opened.train.len(), opened.val.map(|val| val.len()))
    };
    assert_eq!(counts(shards(&one)), (10, None));
    let share = ValSplit { fraction: 0.2, ..ValSplit::default() };
    assert_eq!(counts(ShardsOptions { val_split: share, ..shards(&one) }), (8, Some(2)));
    assert_eq!(counts(ShardsOptions { val_path: Some(other), ..shards(&one) }), (10, Some(4)));
    shard("val/y.tar", 3);
    assert_eq!(counts(shards(folder.path())), (10, Some(3)));
}

#[test]
fn a_picture_that_cannot_be_decoded_is_named_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let members = [("a.png", &png(1)[..]), ("a.cls", b"0"), ("b.jpg", b"no image"), ("b.cls", b"1")];
    let path = file(folder.path(), "x.tar", archive(&members));
    assert_eq!(seen(&opened(ShardsOptions { broken: Broken::Skip, ..shards(&path) })), [(1, 0)]);
    let standardised = ShardsOptions { normalise: Normalise::Standardise, ..shards(&path) };
    let said = refused(Source::Tar(standardised));
    assert!(said.contains("x.tar/b.jpg"), "{said}");
}

#[test]
fn what_is_wrong_with_a_shard_is_told_with_its_file_and_place() {
    let picture = png(1);
    let good = archive(&[("a.png", &picture), ("a.cls", b"0")]);
    let picture_blocks = picture.len().next_multiple_of(512);
    let second = 512 + picture_blocks;
    let folder = tempfile::tempdir().unwrap();
    let says = |bytes: &[u8], words: &str| {
        let path = file(folder.path(), "x.tar", bytes);
        let said = refused(Source::Tar(shards(&path)));
        assert!(said.contains("x.tar") && said.contains(words), "{said:?} lacks {words:?}");
    };
    says(&good[..second], &format!("stops at byte {second}, before the end of the archive"));
    says(&good[..second + 100], &format!("stops at byte {second}, before the end"));
    says(&good[..second + 513], &format!("stops at byte {}, before the end", second + 513));
    says(&good[..600], &format!("byte 0: \"a.png\" has {} bytes, and 88 are left", picture.len()));
    let mut far = good.clone();
    let mut long = Header::from_byte_slice(&far[..512]).clone();
    long.set_size(1 << 40);
    long.set_cksum();
    far[..512].copy_from_slice(long.as_bytes());
    says(&far, &format!("byte 0: \"a.png\" has {} bytes, and", 1u64 << 40));
    let mut damaged = good.clone();
    damaged[second + 3] ^= 1;
    says(&damaged, &format!("byte {second}: this is no header of an archive: its checksum is wrong"));
    says(&[b'x'; 2048], "byte 0: this is no header");
    says(&[], "stops at byte 0");
    says(&[good.clone(), good.clone()].concat(), &format!("byte {}: there is something after", good.len()));
    says(&gzip(&good), "is compressed");
    says(&archive(&[]), "holds no sample");
    says(&archive(&[("notes.txt", b"x")]), "holds no sample");
    says(&archive(&[("a.png", &picture)]), "sample \"a\" has no label");
    says(&archive(&[("d/a.cls", b"1")]), "sample \"d/a\" has no picture");
    says(
        &archive(&[("a.png", &picture), ("a.cls", b"1"), ("a.jpg", &picture)]),
        "sample \"a\" has two pictures: \"a.png\" and \"a.jpg\"",
    );
    says(&archive(&[("a.cls", b"1"), ("a.png", &picture), ("a.cls", b"1")]), "has two classes");
    for (label, words) in [
        (&b"cat"[..], "\"a.cls\" says \"cat\", and a class is a whole number"),
        (b"-1", "\"a.cls\" says \"-1\""),
        (b"1.5", "\"a.cls\" says \"1.5\""),
        (b"", "\"a.cls\" says \"\""),
        (b"\xff\xfe", "\"a.cls\" says"),
        (b"70000", "x.tar/a.png row 0: label 70000 is out of range"),
        (b"123456789012345678901234567890", "\"a.cls\" says \"123456789012345678901234567890\""),
    ] {
        says(&archive(&[("a.png", &picture), ("a.cls", label)]), words);
    }
    for (json, words) in [
        (&br#"{"caption": 1}"#[..], "\"a.json\" says neither \"label\" nor \"class\""),
        (br#"{"label": "cat"}"#, "\"a.json\" says \"cat\""),
        (br#"{"label": -3}"#, "\"a.json\" says no class"),
        (br#"{"label": 3"#, "\"a.json\" says no class"),
        (b"3", "\"a.json\" says no class"),
    ] {
        says(&archive(&[("a.png", &picture), ("a.json", json)]), words);
    }

    let extended = |kind, content: &[u8]| {
        let mut builder = Builder::new(Vec::new());
        let mut header = header(content.len() as u64);
        header.set_entry_type(kind);
        header.set_cksum();
        builder.append(&header, content).unwrap();
        builder.into_inner().unwrap()
    };
    says(&extended(EntryType::GNULongName, &[b'n'; 70_000]), "byte 0: a name of 70000 bytes");
    says(&extended(EntryType::XHeader, &[b'1'; 2 << 20]), "byte 0: a pax header of 2097152 bytes");
    says(&extended(EntryType::XHeader, b"no record\n"), "byte 0: a broken pax header");
    says(&extended(EntryType::XHeader, b"14 size=12345\n"), "byte 0: a file of 8 GiB or more");
    says(&extended(EntryType::GNUSparse, b""), "byte 0: a file with holes");

    let empty = tempfile::tempdir().unwrap();
    let said = refused(Source::Tar(shards(empty.path())));
    assert!(said.contains("has no .tar files"), "{said}");
    let said = refused(Source::Tar(shards(&empty.path().join("gone.tar"))));
    assert!(said.ends_with("gone.tar does not exist"), "{said}");
}

#[test]
fn no_cut_and_no_changed_byte_of_a_header_makes_it_panic_or_lose_a_sample_silently() {
    let picture = png(1);
    let good = archive(&[("a.png", &picture), ("a.cls", b"0"), ("b.png", &picture), ("b.cls", b"1")]);
    let folder = tempfile::tempdir().unwrap();
    let samples = |bytes: &[u8]| {
        let path = file(folder.path(), "x.tar", bytes);
        open(&Source::Tar(shards(&path))).map(|opened| opened.train.len())
    };
    assert_eq!(samples(&good).unwrap(), 2);
    for length in (0..good.len()).step_by(37) {
        assert!(samples(&good[..length]).is_err() || length + 1024 > good.len(), "{length}");
    }
    for place in 0..512 {
        for change in [0x01, 0x80] {
            let mut changed = good.clone();
            changed[place] ^= change;
            // The end of the checksum is padding.
            assert!(samples(&changed).is_err() || (154..156).contains(&place), "byte {place}");
        }
    }
}
