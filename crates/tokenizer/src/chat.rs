//! How a model wants conversations to be written: the template beside its tokenizer, in the language of Jinja, as transformers renders it.
//!
//! It does not know files of conversations, nor tokens.

use crate::error::TokenizerError;
use crate::tokenizer::Tokenizer;
use hf_chat_template as hugging_face;
use serde_json::{Map, Value};
use std::ops::Range;

/// Whose turns are learnt.
const ASSISTANT: &str = "assistant";
/// Who asks.
const USER: &str = "user";
/// Where a turn has what was thought before it was said, by the names for it, those that templates ask for first. *Source*: transformers, `_REASONING_FIELDS`.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Where a turn has what is called of tools.
pub(crate) const CALLS: &str = "tool_calls";

/// What somebody says in a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Who: `system`, `user` or `assistant`, and what else a template knows.
    pub role: String,
    /// What; none of somebody who calls a tool without a word.
    pub content: Option<String>,
    /// What else a template may ask for: `reasoning_content`, `tool_calls`, `name`.
    pub more: Map<String, Value>,
}

impl Turn {
    /// One of theirs.
    #[must_use]
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: Some(content.into()), more: Map::new() }
    }
}

/// Some of a text, learnt or only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What stands there.
    pub text: String,
    /// Whether a model learns to say it.
    pub is_learnt: bool,
}

/// What a conversation is learnt from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// All of it.
    pub parts: Vec<Part>,
    /// Whether a model that is asked for an answer finds more in front of it than stands in front of one that was given, such as a thought that is begun.
    pub is_asked_otherwise: bool,
}

/// Writes conversations.
#[derive(Debug)]
pub struct ChatTemplate {
    inner: hugging_face::ChatTemplate,
    /// Whether it says itself what is learnt: then that stands between [`MARKS`].
    marks: bool,
}

/// What is to come behind some turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// One that is asked for.
    AnAnswer,
}

/// What is written where a block that is learnt begins, and where it ends: characters that are in no text.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

impl ChatTemplate {
    /// That of a tokenizer; none where it has none.
    ///
    /// *Errors*: it is no template.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<Self>, TokenizerError> {
        let mut config = config_of(tokenizer.settings());
        // One that is known by its usual name alone, or was chosen.
        if let Some((end, _)) = tokenizer.end_of_text() {
            config.eos_token = Some(hugging_face::TokenField::Str(end.to_owned()));
        }
        let Some(text) = tokenizer.template().or_else(|| of_config(config.chat_template.as_ref()?)) else {
            return Ok(None);
        };
        let marked = marked(text);
        let text = marked.as_deref().unwrap_or(text);
        let inner = hugging_face::ChatTemplate::from_template_and_config(text, &config);
        let inner = inner.map_err(|error| TokenizerError::Template(error.to_string()))?;
        Ok(Some(Self { inner, marks: marked.is_some() }))
    }

    /// With the marks that it has.
    fn written(&self, turns: &[Turn], tools: &[Value], behind: Behind) -> Result<String, TokenizerError> {
        let wrong = |problem: String| Err(TokenizerError::Template(problem));
        let has_marks = |turn: &Turn| turn.content.as_deref().unwrap_or_default().contains(MARKS);
        if self.marks && turns.iter().any(has_marks) {
            return wrong("a turn has the character U+FDD0 or U+FDD1, which stand for none".into());
        }
        let input = hugging_face::RenderInput {
            messages: turns.iter().map(message).collect(),
            tools: tools.to_vec(),
            add_generation_prompt: behind == Behind::AnAnswer,
            ..Default::default()
        };
        match self.inner.render(&input) {
            Ok(written) => Ok(written),
            Err(error) => wrong(error.to_string()),
        }
    }

    fn render(&self, turns: &[Turn], tools: &[Value], behind: Behind) -> Result<String, TokenizerError> {
        let written = self.written(turns, tools, behind)?;
        Ok(if self.marks { written.replace(MARKS, "") } else { written })
    }

    /// What an answer to these turns is written behind.
    ///
    /// *Errors*: the template does not take them.
    pub fn prompt(&self, turns: &[Turn]) -> Result<String, TokenizerError> {
        self.render(turns, &[], Behind::AnAnswer)
    }

    /// The texts that a conversation is learnt from: one as a rule, ending with its last answer. What is learnt is what the template says (`{% generation %}`), or else what it writes
    /// more for an answer that was given than for one that is asked for; then, where it writes earlier turns in another way once there are later ones, each answer has a text of its own,
    /// as whoever gives it sees it. None without an answer.
    ///
    /// An answer that nobody asked for, in front of all questions, is read alone.
    ///
    /// *Errors*: the template does not take the turns, or does not write what is answered.
    pub fn texts(&self, turns: &[Turn], tools: &[Value]) -> Result<Vec<Text>, TokenizerError> {
        let Some(last) = turns.iter().rposition(|turn| turn.role == ASSISTANT) else { return Ok(Vec::new()) };
        let texts = match self.marks {
            true => vec![self.as_marked(&turns[..=last], tools)?],
            false => self.by_answers(&turns[..=last], tools)?,
        };
        let said = texts.last().map(|text| &text.parts[..]).unwrap_or_default();
        let is_said = |word: &str| said.iter().any(|part| part.is_learnt && part.text.contains(word));
        match last_word(turns[last].content.as_deref().unwrap_or_default()) {
            Some(word) if !texts.is_empty() && !is_said(word) => {
                let problem = "it does not write what the assistant says, so that nothing would be learnt";
                Err(TokenizerError::Template(problem.into()))
            }
            _ => Ok(texts),
        }
    }

    /// By what the template says.
    fn as_marked(&self, turns: &[Turn], tools: &[Value]) -> Result<Text, TokenizerError> {
        let written = self.written(turns, tools, Behind::Nothing)?;
        let mut parts = Vec::new();
        let mut is_learnt = false;
        for piece in written.split_inclusive(MARKS) {
            let text = piece.trim_end_matches(MARKS);
            if !text.is_empty() {
                parts.push(Part { text: text.to_owned(), is_learnt });
            }
            is_learnt = piece.ends_with(MARKS[0]);
        }
        Ok(Text { parts, is_asked_otherwise: false })
    }

    /// By what is written more once an answer is there.
    fn by_answers(&self, turns: &[Turn], tools: &[Value]) -> Result<Vec<Text>, TokenizerError> {
        let mut texts: Vec<(String, Vec<Range<usize>>, bool)> = Vec::new();
        let Some(first) = turns.iter().position(|turn| turn.role == USER) else { return Ok(Vec::new()) };
        let answers = turns.iter().enumerate().filter(|(_, turn)| turn.role == ASSISTANT);
        for (at, _) in answers.filter(|(at, _)| *at > first) {
            let asked = self.render(&turns[..at], tools, Behind::AnAnswer)?;
            let through = self.render(&turns[..=at], tools, Behind::Nothing)?;
            let begins = common(&asked, &through);
            let is_asked_otherwise = begins < asked.len();
            if is_asked_otherwise && begins < self.render(&turns[..at], tools, Behind::Nothing)?.len() {
                let problem =
                    "it writes what is in front of an answer in another way once the answer is there";
                return Err(TokenizerError::Template(problem.into()));
            }
            let learnt = begins..through.len();
            match texts.last_mut() {
                Some((text, answers, otherwise)) if begins >= text.len() && through.starts_with(&**text) => {
                    *text = through;
                    *otherwise |= is_asked_otherwise;
                    answers.push(learnt);
                }
                _ => texts.push((through, vec![learnt], is_asked_otherwise)),
            }
        }
        let text = |(text, answers, is_asked_otherwise): &(String, Vec<_>, bool)| Text {
            parts: parts(text, answers),
            is_asked_otherwise: *is_asked_otherwise,
        };
        Ok(texts.iter().map(text).collect())
    }
}

/// What a template may ask for of the settings beside a tokenizer, and their own template. What is not understood is not there: much else stands in them.
fn config_of(settings: Option<&[u8]>) -> hugging_face::TokenizerConfig {
    let read: Option<Map<String, Value>> =
        settings.and_then(|settings| serde_json::from_slice(settings).ok());
    let read = read.unwrap_or_default();
    let of = |name: &str| read.get(name).cloned().unwrap_or_default();
    let token = |name: &str| serde_json::from_value(of(name)).ok();
    hugging_face::TokenizerConfig {
        chat_template: serde_json::from_value(of("chat_template")).ok(),
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        pad_token: token("pad_token"),
        unk_token: token("unk_token"),
        extra: Map::new(),
    }
}

/// The template of settings: the only one, or the one that is meant by default.
fn of_config(field: &hugging_face::ChatTemplateField) -> Option<&str> {
    match field {
        hugging_face::ChatTemplateField::Single(text) => Some(text),
        hugging_face::ChatTemplateField::Named(all) => {
            let default = all.iter().find(|template| template.name == "default").or(all.first());
            default.map(|template| template.template.as_str())
        }
    }
}

/// A turn as templates see it: what was thought has each of the names that they ask for.
fn message(turn: &Turn) -> hugging_face::Message {
    let mut extra = turn.more.clone();
    if let Some(thought) = THOUGHTS.iter().find_map(|name| turn.more.get(*name)) {
        extra.entry(THOUGHTS[1]).or_insert_with(|| thought.clone());
        extra.insert(THOUGHTS[0].to_owned(), thought.clone());
    }
    let calls = match extra.remove(CALLS) {
        Some(Value::Array(calls)) => calls,
        _ => Vec::new(),
    };
    hugging_face::Message {
        role: turn.role.clone(),
        content: turn.content.clone().map(hugging_face::Content::Text),
        tool_calls: calls,
        extra,
    }
}

/// A template that writes [`MARKS`] where its blocks `{% generation %}` begin and end; none where it has no such block. What lies around a block stays as it is: the tags at its edges are
/// of the kind that they were, with the same marks for blanks.
fn marked(template: &str) -> Option<String> {
    let (mut written, mut rest, mut has_blocks) = (String::new(), template, false);
    while let Some(from) = rest.find("{%") {
        let Some(length) = rest[from..].find("%}") else { break };
        let (before, tag) = (&rest[..from], &rest[from + 2..from + length]);
        rest = &rest[from + length + 2..];
        written += before;
        let (statement, mark) = match tag.trim_matches(['-', '+']).trim() {
            "generation" => ("if true", MARKS[0]),
            "endgeneration" => ("endif", MARKS[1]),
            _ => {
                written += &format!("{{%{tag}%}}");
                continue;
            }
        };
        has_blocks = true;
        let left = &tag[..usize::from(tag.starts_with(['-', '+']))];
        let right = &tag[tag.len() - usize::from(tag.ends_with(['-', '+']))..];
        written += &format!("{{%{left} {statement} %}}{{{{ \"{mark}\" }}}}{{% {statement} {right}%}}");
    }
    has_blocks.then(|| written + rest)
}

/// How many bytes two texts have in common at their beginning, whole characters.
fn common(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(a, _)| a.len_utf8()).sum()
}

/// The last run of letters and digits.
fn last_word(text: &str) -> Option<&str> {
    text.split(|letter: char| !letter.is_alphanumeric()).rfind(|word| !word.is_empty())
}

/// A text that ends with the last of these places, which are learnt.
fn parts(text: &str, learnt: &[Range<usize>]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut from = 0;
    for answer in learnt {
        let read = (from..answer.start, false);
        for (places, is_learnt) in [read, (answer.clone(), true)] {
            if !places.is_empty() {
                parts.push(Part { text: text[places].to_owned(), is_learnt });
            }
        }
        from = answer.end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn;
    use serde_json::json;

    const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn with(template: &str) -> ChatTemplate {
        let tokenizer = learn(std::iter::empty(), 257).unwrap().with_template(template.to_owned());
        ChatTemplate::of(&tokenizer).unwrap().unwrap()
    }

    fn turns(all: &[(&str, &str)]) -> Vec<Turn> {
        all.iter().map(|(role, content)| Turn::new(role, *content)).collect()
    }

    fn shown(texts: &[Text]) -> Vec<Vec<(&str, bool)>> {
        let part = |part: &Part| (part.text.clone().leak() as &str, part.is_learnt);
        texts.iter().map(|text| text.parts.iter().map(part).collect()).collect()
    }

    #[test]
    fn answers_are_learnt_and_all_else_is_read() {
        let chatml = with(CHATML);
        let said =
            turns(&[("system", "S"), ("user", "Q"), ("assistant", "A"), ("user", "R"), ("assistant", "B")]);
        let expected = [
            (
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
                false,
            ),
            ("A<|im_end|>\n", true),
            ("<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n", false),
            ("B<|im_end|>\n", true),
        ];
        assert_eq!(shown(&chatml.texts(&said, &[]).unwrap()), [expected.to_vec()]);
        // What comes behind the last answer has none, and teaches nothing.
        let more = [said.clone(), turns(&[("user", "T")])].concat();
        assert_eq!(chatml.texts(&more, &[]).unwrap(), chatml.texts(&said, &[]).unwrap());
        assert_eq!(chatml.prompt(&said[..2]).unwrap(), expected[0].0);
        assert!(chatml.texts(&said[..2], &[]).unwrap().is_empty());
        // Two answers in a row are two.
        let twice = turns(&[("user", "Q"), ("assistant", "A"), ("assistant", "B")]);
        let texts = chatml.texts(&twice, &[]).unwrap();
        assert_eq!(texts[0].parts.iter().filter(|part| part.is_learnt).count(), 2);
        assert!(!texts[0].is_asked_otherwise);
    }

    #[test]
    fn a_template_that_rewrites_earlier_turns_makes_a_text_of_each_answer() {
        // As Qwen 3 has it: thoughts are there in the last answer alone.
        let thoughtful = with(
            "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}thoughts {% endif %}{{ m.content }}\
             {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        );
        let said = turns(&[("user", "Q"), ("assistant", "A"), ("user", "R"), ("assistant", "B")]);
        let texts = thoughtful.texts(&said, &[]).unwrap();
        assert_eq!(
            shown(&texts),
            [
                vec![("<user>Q<assistant>", false), ("thoughts A", true)],
                vec![("<user>Q<assistant>A<user>R<assistant>", false), ("thoughts B", true)],
            ]
        );
    }

    #[test]
    fn what_is_learnt_is_what_a_template_says_whatever_is_around_its_blocks() {
        let template = |open: &str, close: &str| {
            format!(
                "{{% for m in messages %}}\n  <{{{{ m.role }}}}>\n  {{% if m.role == 'assistant' %}}\n    {{%{open} generation {open}%}}\n   \
                 {{{{ m.content }}}}!\n   {{%{close} endgeneration {close}%}}\n  {{% else %}}{{{{ m.content }}}}{{% endif %}}\n{{% endfor %}}"
            )
        };
        let said =
            turns(&[("user", "Q"), ("assistant", "A"), ("user", "R"), ("assistant", "B"), ("user", "S")]);
        for (open, close) in [("", ""), ("-", "-"), ("-", ""), ("", "-"), ("+", "+")] {
            let text = template(open, close);
            let plain =
                with(&text.replace(" generation ", " if true ").replace(" endgeneration ", " endif "));
            let marking = with(&text);
            assert!(marking.marks && !plain.marks);
            let [written] = &marking.texts(&said, &[]).unwrap()[..] else { panic!("one text") };
            let whole: String = written.parts.iter().map(|part| part.text.as_str()).collect();
            assert_eq!(whole, plain.render(&said[..4], &[], Behind::Nothing).unwrap(), "{open} {close}");
            assert_eq!(marking.prompt(&said).unwrap(), plain.prompt(&said).unwrap());
            let learnt = written.parts.iter().filter(|part| part.is_learnt);
            let learnt: Vec<&str> = learnt.map(|part| part.text.trim()).collect();
            assert_eq!(learnt, ["A!", "B!"], "{open} {close}");
        }
        let marking = with(&template("-", "-"));
        let odd = turns(&[("user", "\u{fdd0}"), ("assistant", "A")]);
        assert!(marking.texts(&odd, &[]).unwrap_err().to_string().contains("U+FDD0"));
    }

    #[test]
    fn all_that_a_turn_has_is_there_for_a_template_and_so_are_tools() {
        let template = "{% for tool in tools %}[{{ tool.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
                        {{ m.content or '' }}{% for call in m.tool_calls %}!{{ call.name }}{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let mut said = turns(&[("user", "Q"), ("assistant", "A")]);
        said[1].more.insert("thinking".into(), "hm".into());
        let call = Turn {
            role: ASSISTANT.into(),
            content: None,
            more: Map::from_iter([(CALLS.to_owned(), json!([{"name": "add"}]))]),
        };
        let all = [said, turns(&[("user", "R")]), vec![call]].concat();
        let texts = with(template).texts(&all, &[json!({"name": "add"})]).unwrap();
        let wanted = [
            ("[add]<user>Q<assistant>", false),
            ("(hm)A", true),
            ("<user>R<assistant>", false),
            ("!add", true),
        ];
        assert_eq!(shown(&texts), [wanted.to_vec()]);
    }

    #[test]
    fn an_answer_that_nobody_asked_for_is_read() {
        let strict = "{% if messages[0].role == 'assistant' and messages|length == 1 %}{{ raise_exception('nobody asked') }}{% endif %}";
        let chatml = with(&(strict.to_owned() + CHATML));
        let said = turns(&[("assistant", "Welcome."), ("user", "Q"), ("assistant", "A")]);
        let texts = chatml.texts(&said, &[]).unwrap();
        assert_eq!(shown(&texts)[0][1], ("A<|im_end|>\n", true));
        assert!(shown(&texts)[0][0].0.contains("Welcome."));
        assert!(chatml.texts(&said[..1], &[]).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_understood_of_settings_is_not_there() {
        let settings = br#"{"eos_token": 3, "bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "{{ bos_token }}"}]}"#;
        let config = config_of(Some(settings));
        assert!(config.eos_token.is_none() && config_of(Some(b"[")).chat_template.is_none());
        assert_eq!(config.bos_token.unwrap().as_str(), Some("<s>"));
        assert_eq!(of_config(&config.chat_template.unwrap()), Some("{{ bos_token }}"));
    }

    #[test]
    fn an_answer_that_is_asked_for_otherwise_is_learnt_from_where_both_ways_part() {
        // As DeepSeek's and Nemotron's: whoever is asked has begun to think.
        let thinking = with(
            "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}{% endfor %}\
             {% if add_generation_prompt %}<assistant><think>\n{% endif %}",
        );
        let texts = thinking.texts(&turns(&[("user", "Q"), ("assistant", "A")]), &[]).unwrap();
        assert_eq!(shown(&texts), [[("<user>Q<assistant><think>", false), ("</think>A", true)]]);
        assert!(texts[0].is_asked_otherwise);
    }

    #[test]
    fn what_a_template_does_not_take_is_an_error_with_its_words() {
        let said = turns(&[("user", "Q"), ("assistant", "A")]);
        let problem = |template: &str| with(template).texts(&said, &[]).unwrap_err().to_string();
        let strict = "{{ raise_exception('roles must alternate') }}";
        assert!(problem(strict).contains("roles must alternate"), "{}", problem(strict));
        let forgetful = "{{ messages[-1].content }}{% if add_generation_prompt %}<think>{% endif %}";
        assert!(problem(forgetful).contains("in another way"), "{}", problem(forgetful));
        // As of a model that sees pictures, to which a turn is a list.
        let pictures = "{% for m in messages %}{{ m.role }}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}";
        assert!(
            problem(pictures).contains("does not write what the assistant says"),
            "{}",
            problem(pictures)
        );
        let tokenizer = learn(std::iter::empty(), 257).unwrap();
        assert!(ChatTemplate::of(&tokenizer).unwrap().is_none());
        let broken = ChatTemplate::of(&tokenizer.with_template("{% for %}".into())).unwrap_err();
        assert!(broken.to_string().contains("chat template"), "{broken}");
    }
}
