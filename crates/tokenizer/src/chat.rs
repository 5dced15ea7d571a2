//! How a model wants conversations to be written: the template beside its tokenizer, in the language of Jinja, as transformers renders it.
//!
//! It does not know files of conversations, nor tokens.

use crate::error::TokenizerError;
use crate::tokenizer::Tokenizer;
use hf_chat_template as hugging_face;
use std::ops::Range;

/// What a template of its own beside a `tokenizer.json` is called; without one it is in the settings.
pub const TEMPLATE: &str = "chat_template.jinja";
/// Whose turns are learnt.
const ASSISTANT: &str = "assistant";

/// What somebody says in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Who: `system`, `user` or `assistant`, and what else a template knows.
    pub role: String,
    /// What.
    pub content: String,
}

impl Turn {
    /// One of theirs.
    #[must_use]
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: content.into() }
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

/// Writes conversations.
#[derive(Debug)]
pub struct ChatTemplate(hugging_face::ChatTemplate);

impl ChatTemplate {
    /// That of a tokenizer; none where it has none.
    ///
    /// *Errors*: it is no template.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<Self>, TokenizerError> {
        let wrong = |problem: String| TokenizerError::Template(problem);
        let mut config: hugging_face::TokenizerConfig = match tokenizer.settings() {
            Some(settings) => serde_json::from_slice(settings).map_err(|error| wrong(error.to_string()))?,
            None => hugging_face::TokenizerConfig::default(),
        };
        // One that is known by its usual name alone, or was chosen.
        if let Some((end, _)) = tokenizer.end_of_text() {
            config.eos_token = Some(hugging_face::TokenField::Str(end.to_owned()));
        }
        let template = match (tokenizer.template(), &config.chat_template) {
            (Some(text), _) => hugging_face::ChatTemplate::from_template_and_config(text, &config),
            (None, Some(_)) => hugging_face::ChatTemplate::from_tokenizer_config(&config),
            (None, None) => return Ok(None),
        };
        template.map(|template| Some(Self(template))).map_err(|error| wrong(error.to_string()))
    }

    fn render(&self, turns: &[Turn], begins_an_answer: bool) -> Result<String, TokenizerError> {
        let messages: Vec<hugging_face::Message> =
            turns.iter().map(|turn| hugging_face::Message::new(&*turn.role, &*turn.content)).collect();
        let written = self.0.render_messages(&messages, begins_an_answer);
        written.map_err(|error| TokenizerError::Template(error.to_string()))
    }

    /// What an answer to these turns is written behind.
    ///
    /// *Errors*: the template does not take them.
    pub fn prompt(&self, turns: &[Turn]) -> Result<String, TokenizerError> {
        self.render(turns, true)
    }

    /// The texts that a conversation is learnt from: one as a rule, ending with its last answer. Where the template writes earlier
    /// turns in another way once there are later ones, each answer has a text of its own, as whoever gives it sees it. None without an answer.
    ///
    /// *Errors*: the template does not take them, or begins an answer with something that it leaves out of it later.
    pub fn texts(&self, turns: &[Turn]) -> Result<Vec<Vec<Part>>, TokenizerError> {
        let mut texts: Vec<(String, Vec<Range<usize>>)> = Vec::new();
        for (at, _) in turns.iter().enumerate().filter(|(_, turn)| turn.role == ASSISTANT) {
            let (before, through) = (self.prompt(&turns[..at])?, self.render(&turns[..=at], false)?);
            if !through.starts_with(&before) {
                let problem = "it begins an answer in another way than it writes one that was given";
                return Err(TokenizerError::Template(problem.into()));
            }
            let learnt = before.len()..through.len();
            match texts.last_mut() {
                Some((text, answers)) if before.starts_with(text.as_str()) => {
                    *text = through;
                    answers.push(learnt);
                }
                _ => texts.push((through, vec![learnt])),
            }
        }
        Ok(texts.iter().map(|(text, answers)| parts(text, answers)).collect())
    }
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

    const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn with(template: &str) -> ChatTemplate {
        let tokenizer = learn(std::iter::empty(), 257).unwrap().with_template(template.to_owned());
        ChatTemplate::of(&tokenizer).unwrap().unwrap()
    }

    fn turns(all: &[(&str, &str)]) -> Vec<Turn> {
        all.iter().map(|(role, content)| Turn::new(role, *content)).collect()
    }

    fn shown(texts: &[Vec<Part>]) -> Vec<Vec<(&str, bool)>> {
        let part = |part: &Part| (part.text.clone().leak() as &str, part.is_learnt);
        texts.iter().map(|parts| parts.iter().map(part).collect()).collect()
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
        assert_eq!(shown(&chatml.texts(&said).unwrap()), [expected.to_vec()]);
        // What comes behind the last answer has none, and teaches nothing.
        let more = [said.clone(), turns(&[("user", "T")])].concat();
        assert_eq!(chatml.texts(&more).unwrap(), chatml.texts(&said).unwrap());
        assert_eq!(chatml.prompt(&said[..2]).unwrap(), expected[0].0);
        assert!(chatml.texts(&said[..2]).unwrap().is_empty());
        // Two answers in a row are two.
        let twice = turns(&[("user", "Q"), ("assistant", "A"), ("assistant", "B")]);
        let learnt = |parts: &[Part]| parts.iter().filter(|part| part.is_learnt).count();
        assert_eq!(learnt(&chatml.texts(&twice).unwrap()[0]), 2);
    }

    #[test]
    fn a_template_that_rewrites_earlier_turns_makes_a_text_of_each_answer() {
        // As Qwen 3 has it: thoughts are there in the last answer alone.
        let thoughtful = with(
            "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}thoughts {% endif %}{{ m.content }}\
             {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        );
        let said = turns(&[("user", "Q"), ("assistant", "A"), ("user", "R"), ("assistant", "B")]);
        let texts = thoughtful.texts(&said).unwrap();
        assert_eq!(
            shown(&texts),
            [
                vec![("<user>Q<assistant>", false), ("thoughts A", true)],
                vec![("<user>Q<assistant>A<user>R<assistant>", false), ("thoughts B", true)],
            ]
        );
    }

    #[test]
    fn what_a_template_does_not_take_is_an_error_with_its_words() {
        let said = turns(&[("user", "Q"), ("assistant", "A")]);
        let problem = |template: &str| with(template).texts(&said).unwrap_err().to_string();
        let strict = "{{ raise_exception('roles must alternate') }}";
        assert!(problem(strict).contains("roles must alternate"), "{}", problem(strict));
        let forgetful = "{{ messages[-1].content }}{% if add_generation_prompt %}<think>{% endif %}";
        assert!(problem(forgetful).contains("in another way"), "{}", problem(forgetful));
        let tokenizer = learn(std::iter::empty(), 257).unwrap();
        assert!(ChatTemplate::of(&tokenizer).unwrap().is_none());
        let broken = ChatTemplate::of(&tokenizer.with_template("{% for %}".into())).unwrap_err();
        assert!(broken.to_string().contains("chat template"), "{broken}");
    }
}
