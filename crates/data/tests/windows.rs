//! Recordings become windows that never go over the end of a file, a gap or a group; and what is wrong with one is said with its place.

mod support;

use dtrain_data::{
    Column, CsvOptions, CsvTarget, HarInputs, HeldOut, Missing, Normalise, Opened, RecordingGroup, Source,
    ValSplit, WindowFiles, WindowForm, WindowsOptions, open,
};
use std::path::Path;
use support::{file, gzip, refused, values_and_classes};

fn options(path: &Path, length: usize, stride: usize) -> WindowsOptions {
    WindowsOptions {
        table: CsvOptions {
            normalise: Normalise::Keep,
            missing: Missing::Fill,
            time: Some(Column::Name("t".into())),
            ..CsvOptions::new(path)
        },
        group: RecordingGroup::None,
        form: WindowForm { length, stride, gap: Some(1.0) },
        har: HarInputs::Signals,
    }
}

fn opened(options: &WindowsOptions) -> Opened {
    open(&Source::Windows(options.clone())).unwrap()
}

/// Two channels that say the row; a gap behind the fifth row of seven.
const ONE: &str = "t,a,note,b,label\n0,0,x,100,up\n1,1,x,101,up\n2,2,y,102,down\n3,3,y,103,down\n4,4,y,104,up\n\
                   9,5,x,105,down\n10,6,x,106,down\n";

#[test]
fn windows_end_at_gaps_and_files_and_have_the_label_of_most_rows_or_the_earlier_of_two() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), "1.csv", ONE);
    file(folder.path(), "2.csv.gz", gzip(b"t,b,a,label\n5,7,6,down\n5,8,7,up\n6,9,8,up\n"));
    file(folder.path(), "notes.txt", "no recording");
    let opened = opened(&options(folder.path(), 2, 1));
    let (values, classes) = values_and_classes(opened.train.as_ref());
    let windows: Vec<&[f32]> = values.chunks(4).collect();
    let row = |first: f32| [first, first + 1.0, first + 100.0, first + 101.0];
    assert_eq!(windows[..4], [0.0, 1.0, 2.0, 3.0].map(row));
    assert_eq!(
        windows[4..],
        [row(5.0), [6.0, 7.0, 7.0, 8.0], [7.0, 8.0, 8.0, 9.0]],
        "a gap, then the other file by its names"
    );
    let (down, up) = (0, 1);
    assert_eq!(classes, [up, up, down, down, down, down, up]);
    assert_eq!(opened.class_names, ["down", "up"]);
    let spec = format!("{:?}", opened.train.spec());
    assert!(spec.contains("shape: [2, 2]"), "{spec}");
}

#[test]
fn a_group_in_a_column_ends_a_window_and_may_begin_its_time_anew() {
    let folder = tempfile::tempdir().unwrap();
    let text = "t,who,a,label\n1,s1,1,0\n2,s1,2,0\n3,s1,3,0\n1,s2,4,1\n2,s2,5,1\n1,s1,6,0\n2,s1,7,0\n";
    let path = file(folder.path(), "all.csv", text);
    let mut options = options(&path, 2, 1);
    options.table.group = Some(Column::Name("who".into()));
    options.group = RecordingGroup::Column;
    options.table.val_split.held_out = HeldOut::Groups(vec!["s2".into()]);
    let opened = opened(&options);
    let train = values_and_classes(opened.train.as_ref());
    assert_eq!(train, (vec![1.0, 2.0, 2.0, 3.0, 6.0, 7.0], vec![0, 0, 0]));
    let val = values_and_classes(opened.val.as_deref().unwrap());
    assert_eq!(val, (vec![4.0, 5.0], vec![1]));
    let groups = opened.groups.unwrap();
    assert_eq!((groups.names, groups.all), (vec!["s2".to_owned()], 2));
}

#[test]
fn scales_and_what_is_missing_are_those_of_training_windows() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), "1.csv", "t,a,label\n0,1,0\n1,,0\n2,3,1\n3,NA,1\n");
    file(folder.path(), "2.csv", "t,a,label\n0,100,0\n1,,0\n");
    let mut options = options(folder.path(), 2, 2);
    options.group = RecordingGroup::File;
    options.table.val_split.held_out = HeldOut::Groups(vec!["2.csv".into()]);
    options.table.normalise = Normalise::Standardise;
    let opened = opened(&options);
    let (train, _) = values_and_classes(opened.train.as_ref());
    let deviation = 0.5f32.sqrt();
    assert_eq!(train, [-1.0 / deviation, 0.0, 1.0 / deviation, 0.0]);
    let (val, _) = values_and_classes(opened.val.as_deref().unwrap());
    assert_eq!(val, [98.0 / deviation, 0.0]);
    // The same file as one to be predicted.
    let preparation = opened.preparation.unwrap();
    let windows = WindowFiles::open(&folder.path().join("2.csv"), &preparation, &options.table);
    let windows = windows.unwrap().unwrap();
    assert_eq!((windows.read(0..1, &preparation), windows.labels().unwrap().join(",")), (val, "0".into()));
}

#[test]
fn the_end_that_is_held_out_shares_no_row_with_training_and_numbers_are_predicted_by_their_mean() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..20).map(|row| format!("{row},{row},{}\n", 2 * row)).collect();
    let path = file(folder.path(), "long.csv", "t,a,label\n".to_owned() + &rows);
    let mut options = options(&path, 4, 2);
    options.table.val_split = ValSplit { fraction: 0.3, held_out: HeldOut::Last };
    options.table.target = CsvTarget::Value;
    let opened = opened(&options);
    let val = opened.val.unwrap();
    // Nine windows, the last three from row 12 on; the one from row 10 would share two of theirs.
    assert_eq!((opened.train.len(), val.len()), (5, 3));
    assert_eq!(support::all(val.as_ref()).targets().f32(), [27.0, 31.0, 35.0]);
    options.table.val_split.held_out = HeldOut::Scattered;
    assert!(refused(Source::Windows(options)).contains("windows of 4 rows every 2 overlap"));
}

#[test]
fn what_is_wrong_with_a_recording_is_said_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let says = |text: &str, words: &str| {
        file(path, "r.csv", text);
        let said = refused(Source::Windows(options(&path.join("r.csv"), 2, 1)));
        assert!(said.contains(words), "{said:?} lacks {words:?}");
    };
    says("t,a,label\n0,1,0\nsoon,2,0\n", "r.csv line 3, column \"t\": \"soon\" is no time");
    says("t,a,label\n0,1,0\n,2,0\n", "r.csv line 3, column \"t\": \"\" is no time");
    says("t,a,label\n5,1,0\n4.5,2,0\n", "r.csv line 3: the time 4.5 is before 5, that of the row in front");
    says("t,a,label\n0,1,0\n7,2,0\n", "has no window of 2 rows: the longest stretch without a gap has 1");
    says("a,label\n0,1\n", "has no column \"t\", only a, label");
    says("t,a,label\n0,1,0\n1,2\n", "r.csv line 3: 2 columns, expected 3");
    says("t,a,label\n0,1,0\n1,x,0\n2,3,0\n3,4,0\n", "r.csv line 3, column 2 (a): \"x\" is not a number");
    says(
        "t,note,label\n0,x,0\n1,y,0\n2,x,0\n",
        "has no column of inputs: t is the time, note is words, label is the label",
    );
    says("t,a,label\n0,1,0\n1,2,\n", "label \"\" is not a whole number from 0");
    says("", "holds no sample");

    file(path, "r.csv", ONE);
    for (text, words) in [
        ("t,b,label\n0,1,0\n1,1,0\n", "s.csv line 1: column \"a\" of the first recording is missing"),
        ("t,a,b,c,label\n0,1,1,1,0\n", "s.csv line 1: the first recording had no column \"c\""),
        ("t,a,b\n0,1,1\n", "s.csv line 1: the column of the label is missing"),
        ("a,b,label\n0,1,1\n", "s.csv line 1: the column of the time is missing"),
        ("t,a,b,label\n0,1,x,0\n", "s.csv line 2, column 3 (b): \"x\" is not a number"),
    ] {
        file(path, "s.csv", text);
        let said = refused(Source::Windows(options(path, 2, 1)));
        assert!(said.contains(words), "{said}");
    }
    file(path, "s.parquet", "PAR1");
    assert!(
        refused(Source::Windows(options(&path.join("s.parquet"), 2, 1)))
            .contains("is a Parquet file, which is not read")
    );
    let empty = path.join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(refused(Source::Windows(options(&empty, 2, 1))).contains("empty has no recordings"));
    let mut folders = options(path, 2, 1);
    folders.group = RecordingGroup::Folder;
    std::fs::remove_file(path.join("s.parquet")).unwrap();
    std::fs::remove_file(path.join("s.csv")).unwrap();
    assert!(
        refused(Source::Windows(folders)).contains("r.csv says no group: it lies in no folder of a group")
    );
    let mut words = options(&path.join("r.csv"), 2, 1);
    words.table.columns = vec!["note".parse().unwrap()];
    assert!(refused(Source::Windows(words)).contains("column \"note\" of"));
}
