//! Weights & Biases by its offline files: `RUN/wandb/offline-run-TIME-ID/run-ID.wandb`, which `wandb sync` uploads, now or later.
//!
//! Nothing of Weights & Biases has to be installed where a run trains, and no server has to be there. Each life of the leading process
//! begins a file of its own under the same id, as a resumed offline run of their own program does. The x-axis of all curves is `step`:
//! their own `_step` only counts rows, since it may not go back.
//!
//! *Source*: `wandb/proto/wandb_internal.proto`, of which this has what it writes.

use super::leveldb::RecordLog;
use super::{Cursor, CurveRow, EndStatus, TrackError, TrackedRun, Tracker};
use crate::{CivilTime, UnixTime};
use prost::Message;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::PathBuf;

/// Where a run is to stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WandbNames {
    /// The project.
    pub project: String,
    /// The user or team; whoever syncs, if none.
    pub entity: Option<String>,
}

/// Writes what `wandb sync` uploads. See the file's comment.
pub struct Wandb {
    names: WandbNames,
    run: TrackedRun,
    file: Option<OfflineFile>,
}

impl Wandb {
    /// A writer for this place.
    #[must_use]
    pub fn new(names: WandbNames) -> Self {
        Self { names, run: TrackedRun::default(), file: None }
    }
}

/// One life's file.
struct OfflineFile {
    log: RecordLog<BufWriter<File>>,
    records: i64,
    begun: UnixTime,
    id: String,
}

impl Tracker for Wandb {
    fn name(&self) -> &'static str {
        "wandb"
    }

    fn begin(&mut self, run: &TrackedRun, cursor: &mut Cursor) -> Result<(), TrackError> {
        self.run = run.clone();
        if cursor.run_id.is_empty() {
            cursor.run_id = draw_id(run);
            cursor.place.clone_from(&self.names.project);
        }
        Ok(())
    }

    fn send(&mut self, rows: &[CurveRow], cursor: &Cursor) -> Result<(), TrackError> {
        let written = self.write(rows, cursor);
        if written.is_err() {
            // The rest of a record may be missing: what comes next needs another file.
            self.file = None;
        }
        written.map_err(|error| TrackError::Passing(format!("{}: {error}", self.folder().display())))
    }

    fn end(&mut self, status: EndStatus, _: &Cursor) -> Result<(), TrackError> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let exit_code = match status {
            EndStatus::Finished => 0,
            EndStatus::Failed => 1,
            EndStatus::Stopped => 130,
        };
        let exit = Record { exit: Some(RunExit { exit_code }), ..Record::default() };
        let written = file.record(exit).and_then(|()| file.log.flush());
        written.map_err(|error| TrackError::Passing(format!("{}: {error}", self.folder().display())))
    }

    fn place(&self, cursor: &Cursor) -> String {
        format!("`wandb sync {}/offline-run-*-{}` uploads it", self.folder().display(), cursor.run_id)
    }
}

impl Wandb {
    fn folder(&self) -> PathBuf {
        self.run.folder.join("wandb")
    }

    fn write(&mut self, rows: &[CurveRow], cursor: &Cursor) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let first = rows.first().map_or_else(UnixTime::now, |row| row.time);
                none.insert(OfflineFile::create(&self.run, &self.names, cursor, first)?)
            }
        };
        let mut newest: BTreeMap<&str, f64> = BTreeMap::new();
        for (row, number) in rows.iter().zip(cursor.rows..) {
            let number = number as i64;
            let runtime = (row.time.0 - file.begun.0).max(0.0);
            let own = [
                ("_timestamp", row.time.0),
                ("_runtime", runtime),
                ("_step", number as f64),
                ("step", row.step as f64),
            ];
            let numbers = row.numbers.iter().map(|(name, number)| (name.as_str(), *number));
            newest.extend(own.into_iter().chain(numbers.clone()));
            let item = own.into_iter().chain(numbers).map(|(name, number)| Item::of(name, number)).collect();
            let history = History { item, step: Some(HistoryStep { num: number }) };
            file.record(Record { history: Some(history), ..Record::default() })?;
        }
        let update = newest.into_iter().map(|(name, number)| Item::of(name, number)).collect();
        file.record(Record { summary: Some(Summary { update }), ..Record::default() })?;
        file.log.flush()
    }
}

impl OfflineFile {
    fn create(run: &TrackedRun, names: &WandbNames, cursor: &Cursor, begun: UnixTime) -> io::Result<Self> {
        let id = cursor.run_id.clone();
        let file = create_new(run, begun, &id)?;
        let mut file = Self { log: RecordLog::new(BufWriter::new(file))?, records: 0, begun, id };
        let version_info = Some(VersionInfo { producer: format!("dtrain {}", run.version) });
        file.record(Record { header: Some(Header { version_info }), ..Record::default() })?;
        let record = RunRecord {
            run_id: file.id.clone(),
            entity: names.entity.clone().unwrap_or_default(),
            project: names.project.clone(),
            config: Some(Config { update: config(run) }),
            display_name: run.name.clone(),
            host: run.host.clone(),
            start_time: Some(Timestamp { seconds: begun.0 as i64, nanos: 0 }),
            resume: true,
        };
        file.record(Record { run: Some(record), ..Record::default() })?;
        let metric = Metric {
            glob_name: "*".into(),
            step_metric: "step".into(),
            options: Some(MetricOptions { step_sync: true, defined: true }),
        };
        file.record(Record { metric: Some(metric), ..Record::default() })?;
        Ok(file)
    }

    fn record(&mut self, record: Record) -> io::Result<()> {
        self.records += 1;
        let info = Some(RecordInfo { stream_id: self.id.clone() });
        self.log.record(&Record { num: self.records, info, ..record }.encode_to_vec())
    }
}

/// Two lives within a second have the same name: the second takes the next one.
fn create_new(run: &TrackedRun, begun: UnixTime, id: &str) -> io::Result<File> {
    let mut time = begun;
    loop {
        let CivilTime { year, month, day, hour, minute, second } = time.civil();
        let name = format!("offline-run-{year:04}{month:02}{day:02}_{hour:02}{minute:02}{second:02}-{id}");
        let folder = run.folder.join("wandb").join(name);
        fs::create_dir_all(&folder)?;
        match File::create_new(folder.join(format!("run-{id}.wandb"))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => time.0 += 1.0,
            created => return created,
        }
    }
}

/// Eight letters and digits, which no other run has.
fn draw_id(run: &TrackedRun) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut hasher = blake3::Hasher::new();
    hasher.update(run.folder.as_os_str().as_encoded_bytes());
    hasher.update(run.host.as_bytes());
    hasher.update(&UnixTime::now().0.to_le_bytes());
    hasher.update(&std::process::id().to_le_bytes());
    let drawn = hasher.finalize();
    drawn.as_bytes()[..8].iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

/// The keys of the configuration, those of a section inside one value.
fn config(run: &TrackedRun) -> Vec<ConfigItem> {
    let mut all = Map::new();
    for (key, value) in &run.params {
        // Numbers and truth values as such, everything else as the text that it is.
        let value = match serde_json::from_str(value) {
            Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
            _ => Value::String(value.clone()),
        };
        match key.split_once('.') {
            None => drop(all.insert(key.clone(), value)),
            Some((section, key)) => {
                let section = all.entry(section).or_insert_with(|| Value::Object(Map::new()));
                section.as_object_mut().map(|section| section.insert(key.to_owned(), value));
            }
        }
    }
    let item = |(key, value): (String, Value)| ConfigItem { key, value_json: value.to_string() };
    all.into_iter().map(item).collect()
}

/// A number as their JSON has it.
fn json(number: f64) -> String {
    match number {
        x if x.is_nan() => "NaN".to_owned(),
        x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        x => x.to_string(),
    }
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, tag = "1")]
    num: i64,
    #[prost(message, optional, tag = "2")]
    history: Option<History>,
    #[prost(message, optional, tag = "3")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "12")]
    metric: Option<Metric>,
    #[prost(message, optional, tag = "17")]
    run: Option<RunRecord>,
    #[prost(message, optional, tag = "18")]
    exit: Option<RunExit>,
    #[prost(message, optional, tag = "21")]
    header: Option<Header>,
    #[prost(message, optional, tag = "200")]
    info: Option<RecordInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct RecordInfo {
    #[prost(string, tag = "1")]
    stream_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(message, optional, tag = "1")]
    version_info: Option<VersionInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct VersionInfo {
    #[prost(string, tag = "1")]
    producer: String,
}

#[derive(Clone, PartialEq, Message)]
struct RunRecord {
    #[prost(string, tag = "1")]
    run_id: String,
    #[prost(string, tag = "2")]
    entity: String,
    #[prost(string, tag = "3")]
    project: String,
    #[prost(message, optional, tag = "4")]
    config: Option<Config>,
    #[prost(string, tag = "8")]
    display_name: String,
    #[prost(string, tag = "13")]
    host: String,
    #[prost(message, optional, tag = "17")]
    start_time: Option<Timestamp>,
    #[prost(bool, tag = "24")]
    resume: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Config {
    #[prost(message, repeated, tag = "1")]
    update: Vec<ConfigItem>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfigItem {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "16")]
    value_json: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "2")]
    glob_name: String,
    #[prost(string, tag = "4")]
    step_metric: String,
    #[prost(message, optional, tag = "6")]
    options: Option<MetricOptions>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricOptions {
    #[prost(bool, tag = "1")]
    step_sync: bool,
    #[prost(bool, tag = "3")]
    defined: bool,
}

#[derive(Clone, PartialEq, Message)]
struct History {
    #[prost(message, repeated, tag = "1")]
    item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    step: Option<HistoryStep>,
}

#[derive(Clone, PartialEq, Message)]
struct HistoryStep {
    #[prost(int64, tag = "1")]
    num: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    update: Vec<Item>,
}

/// A number of a history or a summary. A name with a slash is no path: it is one part.
#[derive(Clone, PartialEq, Message)]
struct Item {
    #[prost(string, repeated, tag = "2")]
    nested_key: Vec<String>,
    #[prost(string, tag = "16")]
    value_json: String,
}

impl Item {
    fn of(name: &str, number: f64) -> Self {
        Self { nested_key: vec![name.to_owned()], value_json: json(number) }
    }
}

#[derive(Clone, PartialEq, Message)]
struct RunExit {
    #[prost(int32, tag = "1")]
    exit_code: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_section_stand_together_and_numbers_are_numbers() {
        let params =
            [("seed", "7"), ("optimizer.lr", "2e-3"), ("model.kind", "cnn"), ("model.hidden", "[128]")];
        let params = params.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let run = TrackedRun { params, ..TrackedRun::default() };
        let items: Vec<(String, String)> =
            config(&run).into_iter().map(|item| (item.key, item.value_json)).collect();
        let expected = [
            ("seed", "7"),
            ("optimizer", r#"{"lr":0.002}"#),
            ("model", r#"{"kind":"cnn","hidden":"[128]"}"#),
        ];
        assert_eq!(items, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!([f64::NAN, f64::NEG_INFINITY, 0.5].map(json), ["NaN", "-Infinity", "0.5"]);
    }

    #[test]
    fn each_life_writes_a_file_of_its_own_under_one_id() {
        let folder = tempfile::tempdir().unwrap();
        let run = TrackedRun { folder: folder.path().to_owned(), ..TrackedRun::default() };
        let mut cursor = Cursor::default();
        let row = CurveRow { time: UnixTime(5.0), step: 3, numbers: vec![("train/loss".into(), 0.5)] };
        for _ in 0..2 {
            let mut wandb = Wandb::new(WandbNames { project: "p".into(), entity: None });
            wandb.begin(&run, &mut cursor).unwrap();
            wandb.send(std::slice::from_ref(&row), &cursor).unwrap();
            wandb.end(EndStatus::Finished, &cursor).unwrap();
        }
        let lives: Vec<_> =
            fs::read_dir(folder.path().join("wandb")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(lives.len(), 2);
        let file = format!("run-{}.wandb", cursor.run_id);
        assert!(cursor.run_id.len() == 8 && lives.iter().all(|life| life.join(&file).is_file()));
        // A life with nothing to send leaves nothing.
        let mut wandb = Wandb::new(WandbNames::default());
        wandb.begin(&run, &mut cursor).unwrap();
        wandb.end(EndStatus::Finished, &cursor).unwrap();
        assert_eq!(fs::read_dir(folder.path().join("wandb")).unwrap().count(), 2);
    }
}
