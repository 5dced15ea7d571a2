//! `dtrain export`: a trained model with everything that it needs, for other programs.

use super::print;
use crate::arguments::{Export, ExportTo};
use crate::error::CliError;
use crate::export::{Network, Parameter, onnx, peft, torch, transformers};
use crate::llama_names::ADAPTERS;
use crate::report::{Voice, bytes};
use crate::run_tokenizer::{self, file_of};
use crate::trained::Trained;
use crate::unusable::unusable;
use crate::whole_file::{WholeFile, name_beside, unwritable};
use dtrain_checkpoint::{Check, Exported, FileStore, Store, write_tensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes the model of a checkpoint; what is written is whole or not there.
///
/// *Errors*: of the checkpoint, or of the disk.
pub fn run(arguments: &Export) -> Result<(), CliError> {
    let trained = Trained::open(&arguments.run)?;
    trained.say_notes(Voice::here());
    let output = arguments.output.clone().unwrap_or_else(|| default_name(&trained, arguments.to));
    let size = match arguments.to {
        ExportTo::Safetensors => safetensors(&trained, &output)?,
        ExportTo::Onnx => {
            let file = onnx(&Network::of(&trained)?)?;
            let mut whole = WholeFile::create(&output)?;
            whole.write(&file)?;
            whole.finish()?;
            file.len() as u64
        }
        ExportTo::Torch => {
            let files = torch(&Network::of(&trained)?);
            let mut texts = vec![("model.py", &files.model[..]), ("preparation.json", &files.preparation)];
            texts.extend(files.predict.map(|text| ("predict.py", text)));
            folder(&trained, &output, &texts, (MODEL, &files.tensors))?
        }
        ExportTo::Transformers => {
            let tokenizer = run_tokenizer::of(&trained.run)?;
            let end = tokenizer.as_ref().and_then(|tokenizer| tokenizer.end_of_text()).map(|(_, id)| id);
            let files = transformers(&Network::of(&trained)?, &trained.config.model, end)?;
            folder(&trained, &output, &[("config.json", &files.config)], (MODEL, &files.tensors))?
        }
        ExportTo::Peft => {
            let files = peft(&trained)?;
            let config = [("adapter_config.json", &files.config[..])];
            folder(&trained, &output, &config, (ADAPTERS, &files.tensors))?
        }
    };
    if let (Some(tokenizer), ExportTo::Safetensors | ExportTo::Onnx) = (file_of(&trained.run), arguments.to) {
        Voice::here().say(&format!("note: its tokenizer is {}", tokenizer.display()));
    }
    print(&format!(
        "{}  {}  checkpoint {} of {}\n",
        output.display(),
        bytes(size),
        trained.id,
        trained.run.path.display()
    ))
}

/// What others call the file of a model in its folder.
const MODEL: &str = "model.safetensors";

fn default_name(trained: &Trained, to: ExportTo) -> PathBuf {
    let name = &trained.run.name;
    PathBuf::from(match to {
        ExportTo::Safetensors => format!("{name}.safetensors"),
        ExportTo::Onnx => format!("{name}.onnx"),
        ExportTo::Torch => format!("{name}-torch"),
        ExportTo::Transformers => format!("{name}-transformers"),
        ExportTo::Peft => format!("{name}-peft"),
    })
}

fn safetensors(trained: &Trained, output: &Path) -> Result<u64, CliError> {
    let checkpoint = FileStore::new(&trained.run.path).open(trained.id, Check::Digests);
    let shown = format!("checkpoint {} of {}", trained.id, trained.run.path.display());
    let checkpoint = checkpoint.map_err(|damage| unusable(&shown, &damage))?;
    let written = dtrain_checkpoint::export(&checkpoint, output, Exported::Model)
        .map_err(|error| unwritable(output, &error))?;
    Ok(written.bytes.0)
}

/// A folder of these texts and tensors, and of the tokenizer, if the run has one.
fn folder(
    trained: &Trained,
    output: &Path,
    texts: &[(&str, &str)],
    (name_of_tensors, tensors): (&str, &BTreeMap<String, Parameter>),
) -> Result<u64, CliError> {
    if output.exists() {
        let error = CliError::usage(format!("{} is there already", output.display()));
        return Err(error.hint("name another folder with -o"));
    }
    let temporary = name_beside(output)?;
    let written = (|| {
        fs::create_dir(&temporary)?;
        for (name, text) in texts {
            fs::write(temporary.join(name), text)?;
        }
        let tensors =
            tensors.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..], &tensor.values[..]));
        for (name, file) in file_of(&trained.run).iter().flat_map(|file| run_tokenizer::files(file)) {
            fs::copy(file, temporary.join(name))?;
        }
        let file = temporary.join(name_of_tensors);
        write_tensors(&file, &[("format", "pt".to_owned())], tensors)?;
        let size = fs::metadata(file)?.len();
        fs::rename(&temporary, output)?;
        Ok(size)
    })();
    written.map_err(|error: std::io::Error| {
        let _ = fs::remove_dir_all(&temporary);
        unwritable(output, &error)
    })
}
