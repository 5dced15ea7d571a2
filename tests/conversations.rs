//! Models that learn from conversations: `dtrain tokenize --chat`, training on answers alone, and asking what was learnt.

use crate::harness::gpus::Host;
use crate::harness::turn::has_turn;
use crate::harness::{audit_is_clean, dtrain, folder, json, refused, said, train};
use dtrain_tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

const TEMPLATE: &str = "{% for m in messages %}{{ '[' + m.role + '] ' + m.content + (eos_token if m.role == 'assistant' else '') + '\n' }}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
const MODEL: &str = "model.kind=llama model.layers=2 model.width=32 model.heads=4 model.kv_heads=2 optimizer.lr=1e-2 global_batch=8 micro_batch=2";
const WORDS: [(&str, &str); 4] = [("sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black")];

/// Forty conversations of one question or two.
fn conversations() -> String {
    let turn = |role: &str, content: String| json!({"role": role, "content": content});
    let asked = |number: usize| {
        let (thing, colour) = WORDS[number % WORDS.len()];
        [turn("user", format!("Which colour has {thing}?")), turn("assistant", format!("It is {colour}."))]
    };
    let of = |number: usize| {
        let mut turns = asked(number).to_vec();
        if number.is_multiple_of(3) {
            turns.extend(asked(number / 3 + 1));
        }
        format!("{}\n", json!({"messages": turns}))
    };
    (0..40).map(of).collect()
}

/// Conversations in `chats.jsonl`, a tokenizer in `tok`, a template in `t.jinja`, and what is made of them in `data`.
fn prepare(path: &Path) {
    fs::write(path.join("chats.jsonl"), conversations()).unwrap();
    fs::write(path.join("raw.txt"), conversations()).unwrap();
    fs::write(path.join("t.jinja"), TEMPLATE).unwrap();
    said(path, "tokenize raw.txt --vocabulary 280 -o tok -q");
    said(path, "tokenize chats.jsonl --chat -t tok --template t.jinja -o data -q");
}

/// Each example of a folder: its text, where what is learnt stands between braces.
fn shown(folder: &Path) -> Vec<String> {
    let tokenizer = Tokenizer::open(&folder.join("tokenizer.json")).unwrap();
    let ids = fs::read(folder.join("train.bin")).unwrap();
    let ids: Vec<u32> = ids.chunks(2).map(|two| u16::from_le_bytes(two.try_into().unwrap()).into()).collect();
    let mask = fs::read(folder.join("train.mask")).unwrap();
    assert_eq!(mask.len(), ids.len());
    let (mut all, mut from) = (Vec::<String>::new(), 0);
    for to in 1..=ids.len() {
        if to < ids.len() && mask[to] == mask[from] & !2 {
            continue;
        }
        let text = tokenizer.decode(&ids[from..to]).unwrap();
        if mask[from] & 2 != 0 {
            all.push(String::new());
        }
        *all.last_mut().unwrap() += &if mask[from] & 1 != 0 { format!("{{{text}}}") } else { text };
        from = to;
    }
    all
}

#[test]
fn conversations_become_ids_and_a_mask_of_what_is_learnt() {
    let folder = folder();
    let path = folder.path();
    prepare(path);
    let all = shown(&path.join("data"));
    assert_eq!(all.len(), 40);
    let answer = |thing: &str, colour: &str| {
        format!("[user] Which colour has {thing}?\n[assistant] {{It is {colour}.<|endoftext|>\n}}")
    };
    assert_eq!(all[1], answer("grass", "green"));
    assert_eq!(all[3], answer("coal", "black") + &answer("snow", "white"));
    // The template goes with the tokenizer from here on.
    for file in ["tokenizer.json", "chat_template.jinja"] {
        assert!(fs::read(path.join("data").join(file)).is_ok(), "{file}");
    }
    let line = json(path, "tokenize chats.jsonl --chat -t data -o again --val chats.jsonl --json");
    assert_eq!(
        (line["train"]["conversations"].as_u64(), line["train"]["unanswered"].as_u64()),
        (Some(40), Some(0))
    );
    let learnt = all.concat().matches('{').count() as u64;
    assert!(line["train"]["learnt"].as_u64().unwrap() > 3 * learnt, "{line}");
    assert_eq!(line["val"]["tokens"], line["train"]["tokens"]);
    for (one, other) in [("data/train", "again/train"), ("again/train", "again/val")] {
        for end in ["bin", "mask"] {
            let bytes = |name: &str| fs::read(path.join(format!("{name}.{end}"))).unwrap();
            assert!(bytes(one) == bytes(other), "{one}.{end}");
        }
    }
    // As others write them down; what has no answer is left out, and told.
    let others = [
        json!({"conversations": [{"from": "human", "value": "Which colour has grass?"}, {"from": "gpt", "value": "It is green."}]}),
        json!({"instruction": "Which colour has grass?", "input": "", "output": "It is green."}),
        json!({"messages": [{"role": "user", "content": "Well?"}]}),
        json!({"prompt": "Which colour", "completion": " has it?"}),
    ];
    fs::write(path.join("others.json"), json!(others).to_string()).unwrap();
    let mut piped = dtrain(path, "tokenize others.json --chat -t data -o others");
    let told = String::from_utf8(piped.output().unwrap().stderr).unwrap();
    assert!(told.contains("1 conversation without an answer left out"), "{told}");
    let green = answer("grass", "green");
    assert_eq!(shown(&path.join("others")), [&green, &green, "Which colour{ has it?<|endoftext|>}"]);
    piped = dtrain(path, "tokenize - --chat -t data -o piped -q");
    piped.stdin(fs::File::open(path.join("chats.jsonl")).unwrap()).stderr(Stdio::inherit());
    assert!(piped.output().unwrap().status.success());
    assert_eq!(shown(&path.join("piped")), all);
    // A template that writes earlier turns otherwise makes an example of each answer.
    let shouting = TEMPLATE.replace(
        "m.content +",
        "(m.content | upper if m.role == 'assistant' and not loop.last else m.content) +",
    );
    fs::write(path.join("shouting.jinja"), shouting).unwrap();
    let mut shouting =
        dtrain(path, "tokenize chats.jsonl --chat -t tok --template shouting.jinja -o shouting");
    let told = String::from_utf8(shouting.output().unwrap().stderr).unwrap();
    assert!(told.contains("40 conversations") && told.contains("note: 54 examples of them"), "{told}");
    // A template without the token that ends a text: nobody would know where an answer does.
    fs::write(path.join("endless.jinja"), TEMPLATE.replace("eos_token", "'!'")).unwrap();
    let mut endless = dtrain(path, "tokenize chats.jsonl --chat -t tok --template endless.jinja -o endless");
    let told = String::from_utf8(endless.output().unwrap().stderr).unwrap();
    assert!(told.contains("no answer ends with <|endoftext|>") && told.contains("--end"), "{told}");
}

#[test]
fn what_is_learnt_from_conversations_has_the_same_bits_and_answers() {
    let folder = folder();
    let path = folder.path();
    prepare(path);
    let model = format!("data.kind=tokens data.path=data data.context=90 {MODEL}");
    let digest = |how: &str| train(path, &format!("{model} steps=12 {how}")).digest();
    for packing in ["off", "on"] {
        let packing = format!("data.packing={packing}");
        let one = digest(&format!("{packing} ranks=1 threads=1"));
        for how in
            ["ranks=2 threads=1", "ranks=3 isolation=thread", "ranks=5 workers=0", "ranks=8 isolation=thread"]
        {
            assert_eq!(digest(&format!("{packing} {how}")), one, "{packing} {how}");
        }
    }
    audit_is_clean(path, "tokens");
    let run = train(path, &format!("{model} steps=250 data.packing=on name=chat"));
    run.succeeded();
    run.said("of them in 36 examples");
    for (thing, colour) in WORDS {
        let answer =
            said(path, &format!("generate chat --chat Which~colour~has~{thing}? --temperature 0 -t 30 -q"));
        assert_eq!(answer, format!("It is {colour}."));
    }
    let asked =
        json(path, "generate chat --chat Which~colour~has~snow? --system Well. --temperature 0 -t 30 --json");
    assert_eq!(asked["prompt"], "[system] Well.\n[user] Which colour has snow?\n[assistant] ");
    let twice = said(path, "generate chat --chat Which~colour~has~snow? --temperature 0 -t 30 -n 2 -q");
    assert_eq!(twice, "It is white.\n---\nIt is white.\n---\n");
    let mut piped = dtrain(path, "generate chat --chat - --temperature 0 -t 30 -q");
    fs::write(path.join("asked.txt"), "Which colour has snow?\n").unwrap();
    let answer = piped.stdin(fs::File::open(path.join("asked.txt")).unwrap()).output().unwrap().stdout;
    assert_eq!(String::from_utf8(answer).unwrap(), "It is white.");
    fs::write(path.join("strange.jsonl"), json!({"messages": [{"role": "user", "content": 3}]}).to_string())
        .unwrap();
    let long = json!({"prompt": "Which colour has snow? ".repeat(40), "completion": "white"});
    fs::write(path.join("question.jsonl"), long.to_string()).unwrap();
    // Of other conversations what is learnt is measured, and of a text all of it.
    let of = |data: &str| json(path, &format!("eval chat --data {data} --json"));
    let (chats, ids) = (of("chats.jsonl"), of("data/train.bin"));
    let learnt = fs::read(path.join("data/train.mask")).unwrap().iter().filter(|byte| *byte & 1 != 0).count();
    assert_eq!((&chats["loss"], chats["tokens"].as_u64()), (&ids["loss"], Some(learnt as u64)));
    assert!(chats["loss"].as_f64().unwrap() < 0.3 && chats["accuracy"].as_f64().unwrap() > 0.9, "{chats}");
    // Each is measured by itself, though several shared a sample in training.
    let lines = fs::read_to_string(path.join("chats.jsonl")).unwrap();
    let [first, second] = [0, 3].map(|number| lines.lines().nth(number).unwrap());
    fs::write(path.join("both.jsonl"), format!("{first}\n{second}\n")).unwrap();
    let sums = [("first", first), ("second", second)].map(|(name, line)| {
        fs::write(path.join(format!("{name}.jsonl")), line).unwrap();
        let told = of(&format!("{name}.jsonl"));
        (told["loss"].as_f64().unwrap() * told["tokens"].as_f64().unwrap(), told["tokens"].as_f64().unwrap())
    });
    let apart = (sums[0].0 + sums[1].0) / (sums[0].1 + sums[1].1);
    assert!((of("both.jsonl")["loss"].as_f64().unwrap() - apart).abs() < 1e-6, "{apart}");
    // A text that happens to be JSON is a text.
    fs::write(path.join("text.json"), json!({"a": lines}).to_string()).unwrap();
    assert!(of("text.json")["tokens"].as_u64() > Some(500));
    refused(
        path,
        "eval chat --data strange.jsonl",
        &["strange.jsonl line 1: message 1: \"content\" is no text", "hint: a conversation is"],
    );
    refused(
        path,
        "eval chat --data question.jsonl",
        &["no example of question.jsonl has anything to learn in its first 91 tokens"],
    );
    fs::remove_file(path.join("data/train.mask")).unwrap();
    assert!(of("data/train.bin")["loss"].as_f64().unwrap() > chats["loss"].as_f64().unwrap());
    // The template goes with the model.
    said(path, "export chat --to transformers -o away");
    for folder in ["runs/chat", "away"] {
        assert_eq!(fs::read_to_string(path.join(folder).join("chat_template.jinja")).unwrap(), TEMPLATE);
    }
    // A run that has no mask any more has other samples.
    let resumed = train(path, "--resume chat steps=254");
    resumed.ended_with(2);
    resumed.said("hint: ");
}

/// What `dtrain chat` says to questions, and what it says beside that.
fn talked(path: &Path, arguments: &str, questions: &str) -> (String, String) {
    let mut talk = dtrain(path, &format!("chat {arguments}"));
    let talk = talk.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = talk.spawn().unwrap();
    child.stdin.take().unwrap().write_all(questions.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let [said, beside] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{beside}");
    (said, beside)
}

#[test]
fn a_talk_goes_on_as_the_same_texts_written_at_once_and_forgets_what_has_no_room() {
    let folder = folder();
    let path = folder.path();
    prepare(path);
    train(path, &format!("data.kind=tokens data.path=data data.context=90 {MODEL} steps=150 name=chat"))
        .succeeded();
    let (sky, grass) = ("Which colour has sky?", "Which colour has grass?");
    let first = said(path, "generate chat --chat Which~colour~has~sky? --temperature 0 -t 20 -q");
    let so_far = format!("[user] {sky}\n[assistant] {first}<|endoftext|>\n[user] {grass}\n[assistant] ");
    fs::write(path.join("so-far.txt"), &so_far).unwrap();
    let mut generate = dtrain(path, "generate chat --prompt - --temperature 0 -t 20 -q");
    let whole = generate.stdin(fs::File::open(path.join("so-far.txt")).unwrap()).output().unwrap();
    let whole = String::from_utf8(whole.stdout).unwrap();
    let second = whole.strip_prefix(&so_far).expect("it begins with what was said").to_owned();
    // What is common to both prompts is read once.
    let (said_here, _) = talked(
        path,
        "chat --temperature 0 -t 20 -q",
        &format!("{sky}\n\n {grass} \n/new\n{sky}\n/exit\n{sky}"),
    );
    assert_eq!(said_here, format!("{first}\n{second}\n{first}\n"));
    // Three questions and their answers have no room among 90 tokens.
    let (lines, beside) =
        talked(path, "chat --temperature 0 -t 20 --json", &format!("{sky}\n{grass}\n{sky}\n{grass}\n"));
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(
        (of("question"), &of("answer")[..2]),
        (vec![json!(sky), json!(grass), json!(sky), json!(grass)], &[json!(first), json!(second)][..])
    );
    assert!(of("forgotten").iter().any(|count| count.as_u64() > Some(0)), "{lines:?}");
    assert!(beside.contains("the model sees 90 tokens"), "{beside}");
    let mut long = dtrain(path, "chat chat -q");
    fs::write(path.join("long.txt"), sky.repeat(20)).unwrap();
    let refused = long.stdin(fs::File::open(path.join("long.txt")).unwrap()).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(told.contains("and the model sees 90") && told.contains("hint: ask a shorter one"), "{told}");
    // The same seed gives the same talk.
    let drawn = || talked(path, "chat --temperature 1 -t 9 -q", &format!("{sky}\n{sky}\n"));
    assert_eq!(drawn(), drawn());
    let (told, _) = talked(path, "chat --system Well. --temperature 0 -t 20 -q", &format!("{sky}\n"));
    let asked =
        json(path, "generate chat --chat Which~colour~has~sky? --system Well. --temperature 0 -t 20 --json");
    assert_eq!(json!(told.trim_end_matches('\n')), asked["text"]);
}

#[test]
fn a_gpu_learns_from_conversations_whatever_the_number_of_ranks() {
    if !has_turn(6) {
        return;
    }
    let Some(host) = Host::new() else { return };
    prepare(host.path());
    let of = |how: &str| {
        let run = host.train(&format!(
            "devices=cuda:0 data.kind=tokens data.path=data data.context=40 {MODEL} steps=6 precision=bf16 {how}"
        ));
        run.succeeded();
        run.digest()
    };
    assert_eq!(of("ranks=1"), of("ranks=2"));
}

#[test]
fn what_is_no_conversation_is_refused_with_its_line_and_leaves_nothing() {
    let folder = folder();
    let path = folder.path();
    prepare(path);
    let turn = json!({"role": "user", "content": "a"});
    let files = [
        ("texts.jsonl", json!({"text": "a"}).to_string()),
        (
            "roles.jsonl",
            format!("{}\n{}", json!({"messages": [turn]}), json!({"messages": [{"content": "a"}]})),
        ),
        ("asked.jsonl", json!({"messages": [turn]}).to_string()),
        ("strict.jinja", "{{ raise_exception('roles must alternate') }}".to_owned()),
        ("broken.jinja", "{% for %}".to_owned()),
    ];
    for (name, text) in files {
        fs::write(path.join(name), text).unwrap();
    }
    for (arguments, words) in [
        (
            "texts.jsonl --chat -t data",
            &["texts.jsonl line 1: it has no \"messages\"", "hint: a conversation is"][..],
        ),
        ("roles.jsonl --chat -t data", &["roles.jsonl line 2: message 1: it has no \"role\"", "hint: "]),
        ("asked.jsonl --chat -t data", &["there is no answer to learn for made/train.bin", "hint: "]),
        (
            "chats.jsonl --chat -t tok",
            &["chats.jsonl line 1: the tokenizer has no chat template", "hint: --template"],
        ),
        (
            "chats.jsonl --chat -t tok --template strict.jinja",
            &["line 1: ", "roles must alternate", "hint: "],
        ),
        ("chats.jsonl --chat -t tok --template broken.jinja", &["chat template", "hint: "]),
        ("chats.jsonl --chat -t tok --template none.jinja", &["cannot read none.jinja", "hint: "]),
        ("chats.jsonl --chat --vocabulary 300", &["cannot be used with"]),
        ("chats.jsonl --template t.jinja -t tok", &["--chat"]),
        ("chats.jsonl -t tok", &["chats.jsonl line 1: it has no \"text\", but messages", "--chat"]),
        ("chats.jsonl --chat -t data --val asked.jsonl", &["there is no answer to learn for made/val.bin"]),
    ] {
        refused(path, &format!("tokenize {arguments} -o made"), words);
        assert!(!path.join("made").exists(), "{arguments}");
    }
    refused(path, "tokenize chats.jsonl --chat -t data -o data", &["data/train.bin is there already"]);
    fs::remove_file(path.join("data/train.bin")).unwrap();
    refused(path, "tokenize chats.jsonl --chat -t data -o data", &["data/train.mask is there already"]);
    said(path, "tokenize chats.jsonl --chat -t data -o other -q");
    for (arguments, words) in [
        ("data.path=other loss.ignore_index=3", &["loss.ignore_index: the mask", "hint: "][..]),
        ("data.path=other data.context=4", &["no example of other/train.mask", "data.context"]),
        ("data.path=tok data.packing=on", &["data.packing: the ids have no mask", "hint: "]),
    ] {
        let run = train(path, &format!("data.kind=tokens {MODEL} steps=2 {arguments}"));
        run.ended_with(2);
        words.iter().for_each(|words| run.said(words));
    }
    train(path, &format!("data.kind=tokens data.path=tok {MODEL} steps=2 name=plain")).succeeded();
    refused(path, "generate plain --chat a", &["has no template of conversations", "hint: "]);
    refused(path, "generate plain --chat a --prompt b", &["cannot be used with"]);
    refused(path, "generate plain --system a", &["--chat"]);
    refused(path, "chat plain", &["has no template of conversations", "hint: "]);
    refused(path, "chat nothing", &["nothing"]);
    let template = path.join("runs/plain/chat_template.jinja");
    fs::write(&template, "{{ raise_exception('not so') }}").unwrap();
    refused(path, "generate plain --chat a", &["not so"]);
    fs::write(&template, "").unwrap();
    refused(path, "generate plain --chat a", &["writes nothing of a question", "hint: "]);
    fs::write(&template, b"caf\xe9").unwrap();
    refused(path, "generate plain --chat a", &["chat_template.jinja"]);
}
