//! Conversations into ids and a mask beside them, which says where each begins and what of it is learnt.

use super::files::{IdFiles, Written, bar};
use crate::error::CliError;
use crate::report::Voice;
use crate::run_tokenizer;
use crate::whole_file::WholeFile;
use dtrain_data::{BEGINS, IdWidth, LEARNT, Records, mask_of};
use dtrain_tokenizer::{ChatEncoder, Conversation, Example, TEMPLATE, Tokenizer, TokenizerError};
use std::path::{Path, PathBuf};

/// Conversations that are encoded at once, by all cores; or fewer, of so much text. *Units* of the latter: bytes.
const AT_ONCE: usize = 512;
const TEXT_AT_ONCE: usize = 4 << 20;
const FORMS: &str = "a conversation is {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": \"assistant\", \"content\": \"...\"}]}, {\"prompt\": \"...\", \"completion\": \"...\"} \
                     or {\"instruction\": \"...\", \"output\": \"...\"}";

/// Where conversations come from that wait.
type Places = Vec<(PathBuf, u64)>;

/// What takes them.
struct Sink<'a> {
    encoder: ChatEncoder<'a>,
    tokenizer: &'a Tokenizer,
    vocabulary: u32,
    ids: WholeFile,
    mask: WholeFile,
    written: Written,
    waiting: Vec<Conversation>,
    /// How much text they are. *Units*: bytes.
    text: usize,
    places: Places,
    bytes: Vec<u8>,
}

/// Writes the ids of conversations and their mask, which are not finished then, for a model of such a vocabulary. *Blocks* to the end.
///
/// *Errors*: what is no conversation, by file and line; of the template, the tokenizer or the disk.
pub fn of_conversations(
    path: &Path,
    (tokenizer, vocabulary): (&Tokenizer, u32),
    files: &[PathBuf],
    voice: Voice,
) -> Result<(IdFiles, Written), CliError> {
    let encoder = ChatEncoder::new(tokenizer).map_err(|error| {
        CliError::usage(error.to_string()).hint(format!("--template FILE takes the place of the {TEMPLATE} or the tokenizer_config.json beside the tokenizer"))
    })?;
    let mut sink = Sink {
        encoder,
        tokenizer,
        vocabulary,
        ids: WholeFile::create(path)?,
        mask: WholeFile::create(&mask_of(path))?,
        written: Written { learnt: Some(0), ..Written::default() },
        waiting: Vec::new(),
        text: 0,
        places: Vec::new(),
        bytes: Vec::new(),
    };
    let bar = bar(files, voice);
    let mut before = 0;
    for file in files {
        let mut records = Records::open(file)?;
        while let Some(record) = records.next() {
            let (line, object) = record?;
            let conversation = Conversation::of(&object).map_err(|problem| at(file, line, &problem))?;
            sink.put(conversation, (file, line))?;
            bar.set_position(before + records.read());
        }
        before += records.size().unwrap_or(0);
    }
    sink.encode()?;
    bar.finish_and_clear();
    let Sink { ids, mask, written, .. } = sink;
    match written.tokens {
        0 => {
            let error = CliError::usage(format!("there is no answer to learn for {}", path.display()));
            Err(error.hint(FORMS))
        }
        _ => Ok((IdFiles { ids, mask: Some(mask) }, written)),
    }
}

/// What is wrong with one of them.
pub fn at(file: &Path, line: u64, problem: &str) -> CliError {
    let file = if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
    CliError::usage(format!("{file} line {line}: {problem}")).hint(FORMS)
}

impl Sink<'_> {
    fn put(&mut self, conversation: Conversation, (file, line): (&Path, u64)) -> Result<(), CliError> {
        self.text += conversation.bytes();
        self.waiting.push(conversation);
        self.places.push((file.to_owned(), line));
        let is_enough = self.waiting.len() == AT_ONCE || self.text >= TEXT_AT_ONCE;
        if is_enough { self.encode() } else { Ok(()) }
    }

    fn encode(&mut self) -> Result<(), CliError> {
        let examples = self.encoder.examples(&self.waiting).map_err(|(number, error)| {
            let (file, line) = &self.places[number];
            self.refused((file, *line), &error)
        })?;
        for (of_one, (file, line)) in examples.iter().zip(&self.places) {
            self.written.texts += 1;
            self.written.unanswered += u64::from(of_one.iter().all(|example| example.ids.is_empty()));
            for example in of_one.iter().filter(|example| !example.ids.is_empty()) {
                let what = format!("{} line {line}", file.display());
                run_tokenizer::check_known(&what, &example.ids, self.vocabulary)?;
                self.written.count(example, self.tokenizer);
                self.bytes.clear();
                IdWidth::of(self.vocabulary).write(&example.ids, &mut self.bytes);
                self.ids.write(&self.bytes)?;
                self.bytes.clear();
                self.bytes.extend(example.is_learnt.iter().map(|learnt| if *learnt { LEARNT } else { 0 }));
                self.bytes[0] |= BEGINS;
                self.mask.write(&self.bytes)?;
            }
        }
        self.waiting.clear();
        self.text = 0;
        self.places.clear();
        Ok(())
    }

    fn refused(&self, (file, line): (&Path, u64), error: &TokenizerError) -> CliError {
        let hint = match self.encoder.has_template() {
            true => "the template says what it takes; --template FILE names another one",
            false => {
                "--template FILE says how turns are written, in Jinja; lines of a prompt and a completion need none"
            }
        };
        at(file, line, &error.to_string()).hint(hint)
    }
}

impl Written {
    fn count(&mut self, example: &Example, tokenizer: &Tokenizer) {
        let Example { ids, is_learnt, bytes, is_asked_otherwise } = example;
        self.bytes += *bytes as u64;
        self.tokens += ids.len() as u64;
        let learnt = is_learnt.iter().filter(|learnt| **learnt).count() as u64;
        self.learnt = self.learnt.map(|before| before + learnt);
        self.examples += 1;
        self.asked_otherwise += u64::from(*is_asked_otherwise);
        let end = tokenizer.end_of_text().map(|(_, id)| id);
        self.has_end |= ids.iter().zip(is_learnt).any(|(id, learnt)| *learnt && Some(*id) == end);
    }
}
