//! `dtrain tokenize`: texts into files of token ids to train on, by a tokenizer that is there or one that is learnt from them.

use super::print;
use crate::arguments::{Output, Tokenize};
use crate::error::CliError;
use crate::id_files::{Parts, Written, bar, is_read_once, of_conversations, of_texts};
use crate::report::{Voice, amount, bytes};
use crate::run_tokenizer::{failed, open};
use crate::whole_file::{WholeFile, unwritable};
use dtrain_data::{MOST_TOKENS, TOKENIZER, TextPart};
use dtrain_tokenizer::{ChatTemplate, SETTINGS, TEMPLATE, Tokenizer, learn};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes `train.bin`, `tokenizer.json` with what lay beside it and, where there are texts for it, `val.bin`; of conversations a mask beside each. Each is whole or not there, and
/// `train.bin` is the last.
///
/// *Errors*: of the texts, by file and line; of the tokenizer; files that are there already; of the disk. *Blocks* to the end.
pub fn run(arguments: &Tokenize) -> Result<(), CliError> {
    let Output { json, .. } = arguments.output;
    let voice = Voice::of(arguments.output);
    let (train, val) = (files(&arguments.texts)?, files(&arguments.val)?);
    let wanted_end = arguments.end.as_deref();
    let given = arguments.tokenizer.as_deref().map(|file| ending(open(file)?, wanted_end)).transpose()?;
    let given = match (given, &arguments.template) {
        (Some(given), Some(file)) => Some(with_template(given, file)?),
        (given, _) => given,
    };
    check_free(&arguments.folder, given.as_ref())?;
    if let (Some(_), Some(once)) = (arguments.vocabulary, train.iter().find(|file| is_read_once(file))) {
        let shown = if once == Path::new("-") { "standard input".into() } else { once.display().to_string() };
        let error =
            CliError::usage(format!("--vocabulary reads the texts twice, and {shown} can be read once"));
        return Err(error.hint("write the text to a file first"));
    }
    let field = &arguments.field;
    let tokenizer = match (given, arguments.vocabulary) {
        (Some(given), _) => given,
        (None, vocabulary) => {
            ending(learnt(&train, field, vocabulary.unwrap_or(MOST_TOKENS), voice)?, wanted_end)?
        }
    };
    if tokenizer.vocabulary() > MOST_TOKENS {
        let message = format!("the tokenizer has {} tokens", tokenizer.vocabulary());
        let hint = format!("dtrain knows at most {MOST_TOKENS}: --vocabulary N learns a smaller one");
        return Err(CliError::usage(message).hint(hint));
    }
    let end = tokenizer.end_of_text();
    let is_new = !arguments.folder.exists();
    fs::create_dir_all(&arguments.folder).map_err(|error| unwritable(&arguments.folder, &error))?;
    let written = write(arguments, (&tokenizer, end.map(|(_, id)| id)), (&train, &val), voice);
    let (train, val) = written.inspect_err(|_| {
        // What was made for nothing goes away again, unless somebody has put something there.
        if is_new {
            let _ = fs::remove_dir(&arguments.folder);
        }
    })?;
    let end = end.map(|(name, _)| name);
    if json {
        let of = |name: &str, written: Written| {
            let Written { texts, bytes, tokens, learnt, examples, unanswered, .. } = written;
            let path = arguments.folder.join(name);
            match learnt {
                None => json!({"path": path, "texts": texts, "bytes": bytes, "tokens": tokens}),
                Some(learnt) => json!({
                    "path": path,
                    "conversations": texts,
                    "examples": examples,
                    "unanswered": unanswered,
                    "bytes": bytes,
                    "tokens": tokens,
                    "learnt": learnt,
                }),
            }
        };
        let line = json!({
            "vocabulary": tokenizer.vocabulary(),
            "end": end,
            "train": of("train.bin", train),
            "val": val.map(|val| of("val.bin", val)),
        });
        return print(&format!("{line}\n"));
    }
    for (name, written) in [("train.bin", Some(train)), ("val.bin", val)] {
        if let Some(written) = written {
            say(&arguments.folder.join(name), written, end, voice);
        }
    }
    let behind = match (end, arguments.chat) {
        (None, _) => "nothing ends a text".to_owned(),
        (Some(end), false) => format!("{end} behind each text"),
        (Some(end), true) => format!("{end} ends an answer"),
    };
    let vocabulary = amount(tokenizer.vocabulary().into(), "token");
    voice.say(&format!("{}: {vocabulary}, {behind}", arguments.folder.join(TOKENIZER).display()));
    voice.say(&format!(
        "train on them: dtrain train data.kind=tokens data.path={}",
        arguments.folder.display()
    ));
    Ok(())
}

/// Says what a file has.
fn say(file: &Path, written: Written, end: Option<&str>, voice: Voice) {
    let Written { texts, bytes: of, tokens, learnt, examples, unanswered, asked_otherwise, has_end } =
        written;
    let rate = of as f64 / tokens as f64;
    let what = if learnt.is_some() { "conversation" } else { "text" };
    let about = format!("{rate:.2} bytes each, {} of {}", amount(texts, what), bytes(of));
    let Some(learnt) = learnt else {
        return voice.say(&format!("{}: {} ({about})", file.display(), amount(tokens, "token")));
    };
    let share = 100.0 * learnt as f64 / tokens as f64;
    voice.say(&format!(
        "{}: {}, {share:.0} % of them learnt ({about})",
        file.display(),
        amount(tokens, "token")
    ));
    if unanswered > 0 {
        voice.say(&format!("  note: {} without an answer left out", amount(unanswered, "conversation")));
    }
    if examples > texts - unanswered {
        voice.say(&format!(
            "  note: {} of them: the template writes earlier turns otherwise once there are later ones, so each answer has one, with all turns before it",
            amount(examples, "example")
        ));
    }
    if asked_otherwise > 0 {
        voice.say(&format!(
            "  note: the template asks otherwise for {} than it writes an answer that was given: what both have in common is read, the rest is learnt",
            amount(asked_otherwise, "example")
        ));
    }
    if let (Some(end), false) = (end, has_end) {
        voice.say(&format!(
            "  note: no answer ends with {end}, where `dtrain generate` would stop: --end names the token that the template has there"
        ));
    }
}

/// A tokenizer with a template of conversations. *Errors*: it cannot be read, or is none.
fn with_template(tokenizer: Tokenizer, file: &Path) -> Result<Tokenizer, CliError> {
    const HINT: &str = "a template is a text in Jinja, as transformers has it in chat_template.jinja";
    let text = fs::read_to_string(file).map_err(|error| {
        CliError::usage(format!("cannot read {}", file.display())).because(&error).hint(HINT)
    })?;
    let with = tokenizer.with_template(text);
    match ChatTemplate::of(&with) {
        Ok(_) => Ok(with),
        Err(error) => Err(CliError::usage(format!("{}: {error}", file.display())).hint(HINT)),
    }
}

/// The files of paths: a folder stands for those that lie in it, in the order of their names.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let wrong = |error: std::io::Error| {
            CliError::usage(format!("cannot read {}", path.display())).because(&error)
        };
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            if !is_hidden && entry.path().is_file() {
                inside.push(entry.path());
            }
        }
        if inside.is_empty() {
            return Err(CliError::usage(format!("there is no file in {}", path.display())));
        }
        inside.sort();
        all.extend(inside);
    }
    Ok(all)
}

/// *Errors*: files would be written over.
fn check_free(folder: &Path, given: Option<&Tokenizer>) -> Result<(), CliError> {
    let is_there = |(name, same): &(&str, Option<&[u8]>)| {
        let file = folder.join(name);
        let is_same = || same.is_some_and(|same| fs::read(&file).is_ok_and(|bytes| bytes == same));
        file.exists() && !is_same()
    };
    let template = given.and_then(Tokenizer::template).map(str::as_bytes);
    let given = [
        (TOKENIZER, given.map(Tokenizer::bytes)),
        (SETTINGS, given.and_then(Tokenizer::settings)),
        (TEMPLATE, template),
    ];
    let written = ["train.bin", "val.bin", "train.mask", "val.mask"].map(|name| (name, None));
    match written.iter().chain(&given).find(|file| is_there(file)) {
        None => Ok(()),
        Some((name, _)) => {
            let error = CliError::usage(format!("{} is there already", folder.join(name).display()));
            Err(error.hint("name another folder with -o, or take it away"))
        }
    }
}

/// A tokenizer whose texts end as is wanted: as before, with no token, or with one.
///
/// *Errors*: it has none of that name.
fn ending(tokenizer: Tokenizer, end: Option<&str>) -> Result<Tokenizer, CliError> {
    let Some(name) = end else { return Ok(tokenizer) };
    tokenizer.ending_with(Some(name).filter(|name| *name != "none")).ok_or_else(|| {
        let error = CliError::usage(format!("--end: the tokenizer has no token {name}"));
        error.hint("leave it out for that of the tokenizer, if it has one, or say none")
    })
}

/// Learns a tokenizer from files.
fn learnt(files: &[PathBuf], field: &str, vocabulary: u32, voice: Voice) -> Result<Tokenizer, CliError> {
    let bar = bar(files, voice);
    let mut parts = Parts::new(files, field, &bar);
    let mut problem = None;
    let texts = std::iter::from_fn(|| {
        loop {
            match parts.next()? {
                Ok(TextPart::Text(text)) => return Some(text),
                Ok(TextPart::End) => {}
                Err(error) => {
                    problem = Some(error);
                    return None;
                }
            }
        }
    });
    let tokenizer = learn(texts, vocabulary).map_err(|error| failed(&error));
    bar.finish_and_clear();
    match problem {
        Some(error) => Err(error.into()),
        None => tokenizer,
    }
}

/// Writes all files.
fn write(
    arguments: &Tokenize,
    tokens: (&Tokenizer, Option<u32>),
    (train, val): (&[PathBuf], &[PathBuf]),
    voice: Voice,
) -> Result<(Written, Option<Written>), CliError> {
    let (folder, (tokenizer, end)) = (&arguments.folder, tokens);
    let vocabulary = tokenizer.vocabulary();
    let ids = |name: &str, files| match arguments.chat {
        true => of_conversations(&folder.join(name), (tokenizer, vocabulary), files, voice),
        false => of_texts(&folder.join(name), (tokenizer, end, vocabulary), files, &arguments.field, voice),
    };
    let (train_ids, trained) = ids("train.bin", train)?;
    let val = match val.is_empty() {
        true => None,
        false => Some(ids("val.bin", val)?),
    };
    let template = tokenizer.template().map(str::as_bytes);
    let beside =
        [(TEMPLATE, template), (SETTINGS, tokenizer.settings()), (TOKENIZER, Some(tokenizer.bytes()))];
    for (name, bytes) in beside {
        if let Some(bytes) = bytes {
            let mut file = WholeFile::create(&folder.join(name))?;
            file.write(bytes)?;
            file.finish()?;
        }
    }
    let val = val.map(|(ids, written)| ids.finish().map(|()| written)).transpose()?;
    train_ids.finish()?;
    Ok((trained, val))
}
