//! A clip becomes the frames in its middle, channel after channel and frame after frame; all of them are varied alike. A video is the frames
//! that ffmpeg writes.

mod support;

use dtrain_data::{
    Augment, Broken, ClipForm, ClipsOptions, Colours, Feed, Ffmpeg, ImageFiles, Loader, LoaderPlan,
    Normalise, PictureForm, Source, ValSplit, open,
};
use dtrain_types::{BatchPlan, MicroRange, Seed, Step};
use image::{GrayImage, Luma, RgbImage};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use support::{npy, refused, values_and_classes};

fn options(path: &Path) -> ClipsOptions {
    ClipsOptions {
        path: path.to_owned(),
        val_path: None,
        val_split: ValSplit::default(),
        group: None,
        form: ClipForm {
            frames: 3,
            stride: 4,
            picture: PictureForm { height: 2, width: 2, colours: Colours::Gray },
        },
        broken: Broken::Refuse,
        cache: 0,
        augment: Augment::default(),
        normalise: Normalise::Keep,
    }
}

/// Class `a` has a folder of twelve frames that are as bright as their number, class `b` an array of eleven in colours.
fn clips(path: &Path) {
    fs::create_dir_all(path.join("a/patient/walk")).unwrap();
    for number in 1..=12u8 {
        let frame = GrayImage::from_pixel(2, 2, Luma([10 * number]));
        frame.save(path.join(format!("a/patient/walk/f{number}.png"))).unwrap();
    }
    fs::create_dir_all(path.join("b")).unwrap();
    let colours: Vec<u8> = (0..11 * 4).flat_map(|pixel| [pixel, 100, 200]).collect();
    fs::write(path.join("b/clip.npy"), npy("|u1", &[11, 2, 2, 3], &colours)).unwrap();
}

#[test]
fn the_frames_in_the_middle_are_taken_by_their_numbers_channel_after_channel() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path());
    let opened = open(&Source::Clips(options(folder.path()))).unwrap();
    assert_eq!(opened.class_names, ["a", "b"]);
    let (values, classes) = values_and_classes(opened.train.as_ref());
    assert_eq!(classes, [0, 1]);
    // Twelve frames, nine from the first that is taken to the last: f2, f6 and f10.
    let bright: Vec<f32> = [20.0, 60.0, 100.0].into_iter().flat_map(|value| [value; 4]).collect();
    assert_eq!(values[..12], bright);
    let mut coloured = options(folder.path());
    coloured.form.picture.colours = Colours::Rgb;
    let opened = open(&Source::Clips(coloured)).unwrap();
    let (values, _) = values_and_classes(opened.train.as_ref());
    let of_array = &values[36..];
    let red: Vec<f32> = [4.0, 20.0, 36.0]
        .into_iter()
        .flat_map(|first| [first, first + 1.0, first + 2.0, first + 3.0])
        .collect();
    assert_eq!(of_array[..12], red);
    assert!(
        of_array[12..24].iter().all(|green| *green == 100.0)
            && of_array[24..].iter().all(|blue| *blue == 200.0)
    );
    // What is predicted is what was trained on.
    let preparation = opened.preparation.unwrap();
    let files = ImageFiles::open(&folder.path().join("b/clip.npy"), &preparation).unwrap().unwrap();
    assert_eq!(files.read(0..1, &preparation).unwrap(), of_array);
    let all = ImageFiles::open(folder.path(), &preparation).unwrap().unwrap();
    assert_eq!(all.files(), [folder.path().join("a/patient/walk"), folder.path().join("b/clip.npy")]);
}

#[test]
fn all_frames_of_a_clip_are_flipped_and_shifted_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for class in ["a", "b"] {
        fs::create_dir_all(path.join(class)).unwrap();
        let one: Vec<u8> = (0..36).map(|place| place + 1).collect();
        fs::write(path.join(class).join("still.npy"), npy("|u1", &[3, 6, 6], &one.repeat(3))).unwrap();
    }
    let mut varied = ClipsOptions { augment: "flip+shift:2+crop:5".parse().unwrap(), ..options(path) };
    (varied.form.stride, varied.form.picture.height, varied.form.picture.width) = (1, 6, 6);
    let train = open(&Source::Clips(varied)).unwrap().train;
    let plan = BatchPlan::new(Seed(7), 2, 2, 2).unwrap();
    let feed = Feed::new(train, plan, Seed(7)).unwrap();
    let share =
        LoaderPlan { range: MicroRange { lo: 0, hi: 1 }, every: 1, from: Step(1), until: Some(Step(20)) };
    let mut loader = Loader::start(feed, share, 0).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        for clip in batch.inputs().f32().chunks(3 * 25) {
            assert!(clip[..25] == clip[25..50] && clip[..25] == clip[50..], "{clip:?}");
            seen.insert(clip[..25].iter().map(|value| *value as u32).collect::<Vec<_>>());
        }
    }
    assert!(seen.len() > 10, "{} of them", seen.len());
}

#[test]
fn what_is_no_clip_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    clips(path);
    let says = |words: &str| {
        let said =
            refused(Source::Clips(ClipsOptions { normalise: Normalise::Standardise, ..options(path) }));
        assert!(said.contains(words), "{said:?} lacks {words:?}");
    };
    fs::write(path.join("b/short.npy"), npy("|u1", &[8, 2, 2], &[0; 32])).unwrap();
    says("b/short.npy has 8 frames, and 9 are needed");
    let skipping = ClipsOptions { broken: Broken::Skip, ..options(path) };
    assert_eq!(open(&Source::Clips(skipping)).unwrap().train.len(), 2);
    fs::write(path.join("b/short.npy"), npy("|u1", &[9, 2, 2, 4], &[0; 144])).unwrap();
    says("b/short.npy has shape [9, 2, 2, 4], and a clip is [frames, height, width]");
    fs::write(path.join("b/short.npy"), npy("<f4", &[9, 1, 1], &[0; 36])).unwrap();
    says("b/short.npy holds elements of type 4 bytes each, expected uint8");
    fs::write(path.join("b/short.npy"), npy("|u1", &[9, 2, 2], &[0; 35])).unwrap();
    says("b/short.npy holds");
    fs::remove_file(path.join("b/short.npy")).unwrap();
    fs::create_dir(path.join("c")).unwrap();
    RgbImage::new(2, 2).save(path.join("c/alone.png")).unwrap();
    says("c has no clips");
}

/// The ffmpeg that makes videos, and decodes them. Without one a test says that it is skipped.
fn ffmpeg() -> Option<PathBuf> {
    let here = || Ffmpeg::find().ok().map(|ffmpeg| ffmpeg.program().to_owned());
    let found = env::var_os("DTRAIN_TEST_FFMPEG").map(PathBuf::from).or_else(here);
    if found.is_none() {
        println!("skipped: no ffmpeg, neither on PATH nor in DTRAIN_TEST_FFMPEG");
    }
    found
}

/// Runs a test once more, in a process of its own that finds this ffmpeg or none. Whether this is that process.
fn again(test: &str, ffmpeg: Option<&Path>) -> bool {
    const AGAIN: &str = "DTRAIN_TEST_AGAIN";
    if env::var_os(AGAIN).is_some() {
        return true;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(AGAIN, "1").env_remove("DTRAIN_FFMPEG");
    match ffmpeg {
        Some(ffmpeg) => command.env("DTRAIN_FFMPEG", ffmpeg),
        None => command.env("PATH", ""),
    };
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Whether ffmpeg makes a file of these arguments, which are separated by spaces.
fn makes(ffmpeg: &Path, arguments: &str, file: &Path) -> bool {
    let mut command = Command::new(ffmpeg);
    command.args(["-v", "error", "-nostdin", "-y"]).args(arguments.split(' ')).arg(file);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    command.status().unwrap().success()
}

/// So many frames that all differ.
fn moving(frames: u32) -> String {
    format!("-f lavfi -i testsrc=size=64x48:rate=10:duration={}.{}", frames / 10, frames % 10)
}

#[test]
fn a_video_has_the_pixels_of_the_frames_that_ffmpeg_writes() {
    let Some(program) = ffmpeg() else { return };
    if !again("a_video_has_the_pixels_of_the_frames_that_ffmpeg_writes", Some(&program)) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let plain = moving(23);
    let sound = "-f lavfi -i sine=duration=2";
    let made = |name: &str, arguments: &str| {
        let made = makes(&program, arguments, &at("videos").join(name));
        println!("{name}: {}", if made { "made" } else { "skipped: this ffmpeg cannot make it" });
        made
    };
    for (name, arguments) in [
        ("a/plain.mp4", format!("{plain} -c:v mpeg4")),
        ("a/sound.MOV", format!("{plain} {sound} -c:v mpeg4 -c:a aac")),
        ("a/odd.avi", "-f lavfi -i testsrc=size=37x21:rate=25:duration=1 -c:v mjpeg".to_owned()),
        ("b/gray.mkv", format!("{plain} -pix_fmt gray -c:v ffv1")),
        ("b/ten.mkv", format!("{plain} -pix_fmt yuv420p10le -c:v ffv1")),
        ("b/clear.mkv", format!("{plain} -pix_fmt yuva420p -c:v ffv1")),
        // Of each five frames three are there, each at its time.
        ("b/uneven.mkv", format!("{} -vf select='lt(mod(n,5),3)' -c:v ffv1", moving(30))),
        ("b/film.mpg", format!("{plain} -r 25 -c:v mpeg1video")),
    ] {
        assert!(made(name, &arguments), "{name}");
    }
    // Not every ffmpeg has these.
    made("a/web.webm", &format!("{plain} -c:v libvpx"));
    let turned = format!("-display_rotation:v:0 90 -i {} -c copy", at("videos/a/plain.mp4").display());
    made("a/turned.mp4", &turned);
    let strange = at("videos/a/-i a:b%03d 'x'\nnew.mp4");
    fs::copy(at("videos/a/plain.mp4"), &strange).unwrap();

    let mut count = 0;
    for class in ["a", "b"] {
        fs::read_dir(at("videos").join(class)).unwrap().for_each(|video| {
            let video = video.unwrap();
            let frames = at("frames").join(class).join(Path::new(&video.file_name()).with_extension(""));
            fs::create_dir_all(&frames).unwrap();
            // As a user is told to do it. A name that needs care is given another one first.
            let plain = at("plain").with_extension(video.path().extension().unwrap());
            fs::copy(video.path(), &plain).unwrap();
            assert!(makes(&program, &format!("-i {}", plain.display()), &at("x/%06d.png")));
            fs::remove_dir(&frames).unwrap();
            fs::rename(at("x"), &frames).unwrap();
            count += 1;
        });
    }
    for (colours, (height, width), stride) in
        [(Colours::Rgb, (48, 64), 1), (Colours::Rgb, (20, 11), 4), (Colours::Gray, (9, 30), 4)]
    {
        let of = |name: &str| {
            let mut options = options(&at(name));
            options.form.stride = stride;
            options.form.picture = PictureForm { height, width, colours };
            open(&Source::Clips(options)).unwrap()
        };
        let (videos, frames) = (of("videos"), of("frames"));
        let (values, classes) = values_and_classes(videos.train.as_ref());
        assert_eq!(classes.len(), count);
        assert!(
            (values, classes) == values_and_classes(frames.train.as_ref()),
            "{colours:?} {height} x {width}"
        );
        // So has what is predicted.
        let preparation = videos.preparation.unwrap();
        let read = |path: &Path| {
            let files = ImageFiles::open(path, &preparation).unwrap().unwrap();
            files.read(0..files.files().len(), &preparation).unwrap()
        };
        assert_eq!(read(&at("videos/b")), read(&at("frames/b")));
        assert_eq!(read(&strange), read(&at("frames/a/plain")));
    }
}

#[test]
fn a_video_that_cannot_be_decoded_is_named_or_left_out() {
    let Some(program) = ffmpeg() else { return };
    if !again("a_video_that_cannot_be_decoded_is_named_or_left_out", Some(&program)) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let make = |arguments: &str, name: &str| assert!(makes(&program, arguments, &at(name)), "{name}");
    let plain = moving(20);
    make(&format!("{plain} -c:v mpeg4"), "clips/a/good.mp4");
    make(&format!("{plain} -c:v ffv1"), "clips/b/good.mkv");
    make(&format!("{plain} -c:v mpeg4 -movflags faststart"), "whole.mp4");
    make(&format!("{plain} -c:v mpeg4"), "whole.avi");
    make(&format!("{} -c:v mpeg4", moving(8)), "short.mp4");
    make(&format!("{plain} -frames:v 0 -c:v mpeg4"), "zero.avi");
    make("-f lavfi -i sine=duration=1 -c:a aac", "sound.mp4");
    let cut = |from: &str, name: &str| {
        let bytes = fs::read(at(from)).unwrap();
        fs::write(at(name), &bytes[..bytes.len() * 7 / 10]).unwrap();
    };
    cut("clips/a/good.mp4", "cut.mp4");
    cut("whole.mp4", "late.mp4");
    cut("whole.avi", "cut.avi");
    cut("clips/b/good.mkv", "cut.mkv");
    fs::write(at("text.mp4"), "film\n").unwrap();
    fs::write(at("empty.mp4"), "").unwrap();
    fs::write(at("list.mp4"), "#EXTM3U\n#EXTINF:5,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n").unwrap();
    for (name, words) in [
        ("short.mp4", " has 8 frames, and 9 are needed"),
        ("zero.avi", ": ffmpeg cannot decode it: "),
        ("sound.mp4", ": ffmpeg cannot decode it: "),
        ("cut.mp4", ": ffmpeg cannot decode it: "),
        ("late.mp4", ": ffmpeg cannot decode it: "),
        ("cut.avi", ": ffmpeg cannot decode it: "),
        ("cut.mkv", ": ffmpeg cannot decode it: "),
        ("text.mp4", ": ffmpeg cannot decode it: "),
        ("empty.mp4", ": ffmpeg cannot decode it: "),
        ("list.mp4", ": ffmpeg cannot decode it: "),
    ] {
        let bad = at("clips/a").join(name);
        fs::rename(at(name), &bad).unwrap();
        let error = refused(Source::Clips(ClipsOptions {
            normalise: Normalise::Standardise,
            ..options(&at("clips"))
        }));
        println!("{error}");
        assert!(error.contains(&format!("clips/a/{name}{words}")), "{error:?} lacks {words:?}");
        let skipping = ClipsOptions { broken: Broken::Skip, ..options(&at("clips")) };
        assert_eq!(open(&Source::Clips(skipping)).unwrap().train.len(), 2, "{name}");
        fs::remove_file(bad).unwrap();
    }
}

#[test]
fn without_ffmpeg_a_video_is_named_and_never_left_out() {
    if !again("without_ffmpeg_a_video_is_named_and_never_left_out", None) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    clips(path);
    // Who has no videos needs none.
    let preparation = open(&Source::Clips(options(path))).unwrap().preparation.unwrap();
    let film = path.join("b/film.MP4");
    fs::write(&film, "film").unwrap();
    let words = "b/film.MP4: videos are decoded by ffmpeg, which is not on PATH";
    for broken in [Broken::Refuse, Broken::Skip] {
        let said = refused(Source::Clips(ClipsOptions { broken, ..options(path) }));
        assert!(said.ends_with(words), "{said}");
    }
    for asked in [&film, path] {
        let error = ImageFiles::open(asked, &preparation).unwrap_err();
        assert!(error.to_string().ends_with(words), "{error}");
        assert!(
            error.hint().contains("install ffmpeg") && error.hint().contains("%06d.png"),
            "{}",
            error.hint()
        );
    }
}
