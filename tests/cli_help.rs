//! Help for people and for shells: topics, keys and commands, completion scripts and man pages, each tried from outside.

use crate::harness::{dtrain, finish, folder, output};
use std::fs;
use std::process::Command;

/// The commands that people call, as `dtrain --help` lists them.
fn commands() -> Vec<String> {
    let (run, text) = output(folder().path(), "--help");
    run.ended_with(0);
    let list = text
        .split("Commands:\n")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").next())
        .expect("a list of commands");
    list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_topic_of_the_list_and_every_page_of_the_guide_is_shown() {
    let folder = folder();
    let (run, overview) = output(folder.path(), "help");
    run.ended_with(0);
    for page in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide")).unwrap() {
        let path = page.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "README" {
            continue;
        }
        assert!(overview.contains(&format!("\n  {name} ")), "the list has no {name}:\n{overview}");
        let (run, text) = output(folder.path(), &format!("help {name}"));
        run.ended_with(0);
        let title =
            fs::read_to_string(&path).unwrap().lines().next().unwrap().trim_start_matches("# ").to_owned();
        assert!(text.starts_with(&title), "{name}: {text}");
        assert!(!text.contains("](") && !text.contains("```"), "{name} is shown as its source: {text}");
    }
}

#[test]
fn a_command_a_key_and_a_section_are_explained_by_name() {
    let folder = folder();
    let shown = |words: &str| {
        let (run, text) = output(folder.path(), words);
        run.ended_with(0);
        text
    };
    for command in commands() {
        assert_eq!(shown(&format!("help {command}")), shown(&format!("{command} --help")), "{command}");
    }
    assert_eq!(shown("help checkpoint ls"), shown("checkpoint ls --help"));
    let key = shown("help optimizer.lr");
    assert!(
        key.starts_with("optimizer.lr: peak learning rate\n") && key.contains("`2e-3` for adamw"),
        "{key}"
    );
    assert!(!key.contains("lr_scaling"), "{key}");
    assert!(shown("help keys checkpoint").starts_with("checkpoint.every: "), "it is a command too");
    assert_eq!(shown("help keys optimizer"), shown("help optimizer"));
    let section = shown("help optimizer");
    assert!(section.contains("optimizer.lr: ") && section.contains("optimizer.clip_norm: "), "{section}");
    assert!(!section.contains("schedule."), "{section}");
}

#[test]
fn a_word_that_nothing_is_called_gets_the_nearest_one() {
    let folder = folder();
    for (words, hint) in [
        ("help trian", "did you mean `dtrain help train`?"),
        ("help optimizer.lrr", "did you mean `dtrain help optimizer.lr`?"),
        ("help falures", "did you mean `dtrain help failures`?"),
        ("help xyzzy", "`dtrain help` lists what there is"),
        ("help run-launcher", "hint: "),
        ("help train nothing", "hint: "),
    ] {
        let run = finish(dtrain(folder.path(), words));
        run.ended_with(2);
        run.said(hint);
    }
}

/// Bash itself completes: the script is read by it, and asked as the key TAB asks.
#[test]
fn bash_completes_commands_and_flags_and_not_what_is_hidden() {
    let folder = folder();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (run, script) = output(folder.path(), &format!("completions {shell}"));
        run.ended_with(0);
        assert!(script.contains("checkpoint") && !script.contains("run-launcher"), "{shell}");
        fs::write(folder.path().join(shell), script).unwrap();
    }
    let completed = |words: &[&str]| {
        let last = words.len() - 1;
        let program = format!(
            "source ./bash; COMP_WORDS=({}); COMP_CWORD={last}; _dtrain dtrain \"{}\" \"{}\"; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words[last],
            words[last - 1],
        );
        let output =
            Command::new("bash").args(["--norc", "-c", &program]).current_dir(folder.path()).output();
        let output = output.expect("there is a bash");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["dtrain", "trai"]), ["train"]);
    assert_eq!(completed(&["dtrain", "run"]), ["run", "runs"]);
    assert!(completed(&["dtrain", "train", "--res"]).contains(&"--resume".to_owned()));
    assert!(completed(&["dtrain", "drill", "si"]).contains(&"sigterm".to_owned()));
    finish(dtrain(folder.path(), "completions tcsh")).ended_with(2);
}

#[test]
fn every_command_that_people_call_has_its_man_page() {
    let folder = folder();
    finish(dtrain(folder.path(), "man share/man1")).ended_with(0);
    let pages = folder.path().join("share/man1");
    for command in commands() {
        let text = fs::read_to_string(pages.join(format!("dtrain-{command}.1"))).expect("a page a command");
        assert!(text.contains(&format!(".TH dtrain-{command} 1")), "{text}");
    }
    let first = fs::read_to_string(pages.join("dtrain.1")).unwrap().replace("\\-", "-");
    assert!(first.contains("dtrain train -c mnist.yaml") && !first.contains("run-launcher"), "{first}");
    assert!(first.contains("\n.SH EXAMPLES\n.nf\n"), "its examples keep their lines: {first}");
    assert!(!pages.join("dtrain-run-launcher.1").exists() && !pages.join("dtrain-token-help.1").exists());
    let run = finish(dtrain(folder.path(), "man text.txt/here"));
    run.ended_with(2);
    run.said("hint: ");
}
