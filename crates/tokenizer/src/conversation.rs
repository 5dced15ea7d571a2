//! Conversations to learn from, and their tokens: what is learnt of them, and what is only read.
//!
//! It does not know files.

use crate::chat::{CALLS, ChatTemplate, Part, Text, Turn};
use crate::error::TokenizerError;
use crate::tokenizer::{Tokenizer, fails};
use serde_json::{Map, Value};

/// One of them, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conversation {
    /// Who says what; a template says how that is written.
    Turns {
        /// In order.
        turns: Vec<Turn>,
        /// What the assistant may call.
        tools: Vec<Value>,
    },
    /// A text that another one goes on with, which alone is learnt; both as they are.
    Completion {
        /// What is only read.
        prompt: String,
        /// What is learnt.
        completion: String,
    },
}

/// Tokens to learn from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// All of them.
    pub ids: Vec<u32>,
    /// Which a model learns to say; of one length with the ids.
    pub is_learnt: Vec<bool>,
    /// How long the text is. *Units*: bytes.
    pub bytes: usize,
    /// Whether an answer is asked for in another way than it stands here: see [`Text`].
    pub is_asked_otherwise: bool,
}

impl Conversation {
    /// That of a JSON object: `messages` (of `role` and `content`), `conversations` (of `from` and `value`, as ShareGPT has them), `prompt` and `completion`
    /// (texts, or messages), or `instruction`, `input` and `output` (as Alpaca has them). All but texts may have `tools`, and a `system` that is said first.
    ///
    /// *Errors*: in words, what is wrong with it.
    pub fn of(object: &Map<String, Value>) -> Result<Self, String> {
        let get = |name: &str| object.get(name).filter(|value| !value.is_null());
        let mut said = if let Some(messages) = get("messages").or_else(|| get("conversations")) {
            turns(messages)?
        } else if let (Some(prompt), Some(completion)) = (get("prompt"), get("completion")) {
            match (prompt, completion) {
                (Value::String(prompt), Value::String(completion)) => {
                    return Ok(Self::Completion { prompt: prompt.clone(), completion: completion.clone() });
                }
                (Value::Array(_), Value::Array(_)) => [turns(prompt)?, turns(completion)?].concat(),
                _ => {
                    return Err(
                        "\"prompt\" and \"completion\" are two texts, or two lists of messages".into()
                    );
                }
            }
        } else if let (Some(instruction), Some(output)) = (get("instruction"), get("output")) {
            let asked = match get("input").map(|input| text_of(input, "input")).transpose()? {
                Some(input) if !input.is_empty() => {
                    format!("{}\n\n{input}", text_of(instruction, "instruction")?)
                }
                _ => text_of(instruction, "instruction")?,
            };
            vec![Turn::new("user", asked), Turn::new("assistant", text_of(output, "output")?)]
        } else {
            return Err("it has no \"messages\", \"conversations\", \"prompt\" and \"completion\", nor \"instruction\" and \"output\"".into());
        };
        let system = get("system").map(|system| text_of(system, "system")).transpose()?;
        if let Some(system) = system.filter(|system| !system.is_empty()) {
            said.insert(0, Turn::new("system", system));
        }
        let tools = match get("tools") {
            None => Vec::new(),
            Some(Value::Array(tools)) => tools.clone(),
            // As tables have them.
            Some(Value::String(text)) if text.trim().is_empty() => Vec::new(),
            Some(Value::String(text)) => {
                serde_json::from_str(text).map_err(|_| "\"tools\" is no list in JSON".to_owned())?
            }
            Some(_) => return Err("\"tools\" is no list".into()),
        };
        Ok(Self::Turns { turns: said, tools })
    }

    /// About how much is to be encoded of it. *Units*: bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Turns { turns, .. } => {
                turns.iter().filter_map(|turn| turn.content.as_ref()).map(String::len).sum()
            }
            Self::Completion { prompt, completion } => prompt.len() + completion.len(),
        }
    }
}

fn text_of(value: &Value, name: &str) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{name:?} is no text"))
}

fn turns(messages: &Value) -> Result<Vec<Turn>, String> {
    let Value::Array(messages) = messages else { return Err("its messages are no list".into()) };
    let turn = |(at, message): (usize, &Value)| {
        turn(message).map_err(|problem| format!("message {}: {problem}", at + 1))
    };
    messages.iter().enumerate().map(turn).collect()
}

fn turn(message: &Value) -> Result<Turn, String> {
    let Value::Object(message) = message else { return Err("it is no object".into()) };
    let role = message.get("role").or_else(|| message.get("from")).ok_or("it has no \"role\"")?;
    let role = match text_of(role, "role")?.as_str() {
        // As ShareGPT calls them.
        "human" => "user".to_owned(),
        "gpt" | "chatgpt" | "bot" => "assistant".to_owned(),
        role => role.to_owned(),
    };
    let calls = message.get(CALLS).and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let content = match message.get("content").or_else(|| message.get("value")) {
        None | Some(Value::Null) if calls => None,
        None => return Err("it has no \"content\"".into()),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            let texts: Option<String> = parts.iter().map(text).collect();
            Some(texts.ok_or("its \"content\" has parts that are no texts")?)
        }
        Some(content) => Some(text_of(content, "content")?),
    };
    let is_more = |(key, value): &(&String, &Value)| {
        !["role", "from", "content", "value"].contains(&key.as_str()) && !value.is_null()
    };
    let more = message.iter().filter(is_more).map(|(key, value)| (key.clone(), value.clone()));
    Ok(Turn { role, content, more: more.collect() })
}

/// Turns conversations into tokens. Threads may share it.
#[derive(Debug)]
pub struct ChatEncoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The same, for places of tokens in a text: what works on them afterwards cuts blanks off.
    placing: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
}

impl<'a> ChatEncoder<'a> {
    /// By a tokenizer and its template, if it has one; without one it takes completions alone.
    ///
    /// *Errors*: its template is none.
    pub fn new(tokenizer: &'a Tokenizer) -> Result<Self, TokenizerError> {
        let mut placing = tokenizer.inner.clone();
        placing.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        Ok(Self { tokenizer, placing, template: ChatTemplate::of(tokenizer)? })
    }

    /// Whether it takes turns.
    #[must_use]
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// What is learnt of conversations, in order: one example of each as a rule, none where there is no answer, and several where the template wants it. Behind a completion stands the
    /// token that ends a text. An example has the tokens of its whole text; where one of them would lie half in a question and half in its answer, each part has its own, as when the
    /// model is asked and answers. *Blocks* while all cores compute.
    ///
    /// *Errors*: with the number of the conversation that cannot be written.
    pub fn examples(
        &self,
        conversations: &[Conversation],
    ) -> Result<Vec<Vec<Example>>, (usize, TokenizerError)> {
        let mut texts = Vec::new();
        for (number, conversation) in conversations.iter().enumerate() {
            let of_one = self.texts(conversation).map_err(|error| (number, error))?;
            texts.extend(of_one.into_iter().map(|text| (number, text)));
        }
        let whole = |text: &Text| text.parts.iter().map(|part| part.text.as_str()).collect::<String>();
        let all: Vec<String> = texts.iter().map(|(_, text)| whole(text)).collect();
        let encoded =
            self.placing.encode_batch(all.iter().map(String::as_str).collect(), false).map_err(|error| {
                // Whose it is is found by each alone.
                let is_it = |text: &String| self.placing.encode(text.as_str(), false).is_err();
                let number = all.iter().position(is_it).map_or(0, |at| texts[at].0);
                (number, fails(error))
            })?;
        let mut examples = vec![Vec::new(); conversations.len()];
        for ((number, text), encoding) in texts.iter().zip(&encoded) {
            let mut example = self.example(&text.parts, encoding).map_err(|error| (*number, error))?;
            example.is_asked_otherwise = text.is_asked_otherwise;
            if let (Conversation::Completion { .. }, Some((_, end))) =
                (&conversations[*number], self.tokenizer.end_of_text())
            {
                example.ids.push(end);
                example.is_learnt.push(true);
            }
            examples[*number].push(example);
        }
        Ok(examples)
    }

    /// That of a text in parts.
    fn example(&self, parts: &[Part], encoding: &tokenizers::Encoding) -> Result<Example, TokenizerError> {
        let (ids, (is_learnt, lies_across)) = (encoding.get_ids(), learnt(parts, encoding.get_offsets()));
        let bytes = parts.iter().map(|part| part.text.len()).sum();
        let whole = Example { ids: ids.to_vec(), is_learnt, bytes, is_asked_otherwise: false };
        if !lies_across {
            return Ok(whole);
        }
        let mut apart = Example { bytes, ..Example::default() };
        for part in parts {
            apart.ids.extend(self.tokenizer.encode(&part.text)?);
            apart.is_learnt.resize(apart.ids.len(), part.is_learnt);
        }
        // Some tokenizers put a blank in front of whatever they encode.
        let is_same = self.tokenizer.decode(&apart.ids)? == self.tokenizer.decode(ids)?;
        Ok(if is_same { apart } else { whole })
    }

    fn texts(&self, conversation: &Conversation) -> Result<Vec<Text>, TokenizerError> {
        match (conversation, &self.template) {
            (Conversation::Turns { turns, tools }, Some(template)) => template.texts(turns, tools),
            (Conversation::Turns { .. }, None) => {
                Err(TokenizerError::Template("the tokenizer has no chat template".into()))
            }
            (Conversation::Completion { prompt, completion }, _) => {
                let part = |text: &String, is_learnt| Part { text: text.clone(), is_learnt };
                let parts = [part(prompt, false), part(completion, true)];
                let parts = parts.into_iter().filter(|part| !part.text.is_empty()).collect();
                Ok(vec![Text { parts, is_asked_otherwise: false }])
            }
        }
    }
}

/// Which tokens of a text in parts, at these places, are learnt: those with something of a part that is. And whether one of them has something of another part, too.
fn learnt(parts: &[Part], places: &[(usize, usize)]) -> (Vec<bool>, bool) {
    let ends: Vec<usize> = parts
        .iter()
        .scan(0, |end, part| {
            *end += part.text.len();
            Some(*end)
        })
        .collect();
    // What has no length, at the end of all, is of the last one.
    let at = |byte: usize| ends.partition_point(|end| *end <= byte).min(parts.len() - 1);
    let mut lies_across = false;
    let is_learnt = places.iter().map(|(from, to)| {
        let of = &parts[at(*from)..=at((*to).max(from + 1) - 1)];
        let is_learnt = of.iter().any(|part| part.is_learnt);
        lies_across |= is_learnt && of.iter().any(|part| !part.is_learnt);
        is_learnt
    });
    (is_learnt.collect(), lies_across)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn;
    use serde_json::json;

    fn of(object: &Value) -> Result<Conversation, String> {
        Conversation::of(object.as_object().unwrap())
    }

    #[test]
    fn conversations_are_read_as_people_write_them() {
        let of_turns = |turns: Vec<Turn>| Conversation::Turns { turns, tools: Vec::new() };
        let expected = of_turns(vec![Turn::new("user", "Q"), Turn::new("assistant", "A")]);
        let (user, assistant) =
            (json!({"role": "user", "content": "Q"}), json!({"role": "assistant", "content": "A"}));
        for object in [
            json!({"messages": [user, assistant], "id": 3}),
            json!({"messages": null, "conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}),
            json!({"prompt": [user], "completion": [assistant]}),
            json!({"instruction": "Q", "output": "A"}),
            json!({"instruction": "Q", "input": "", "output": "A"}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, assistant]}),
        ] {
            assert_eq!(of(&object).as_ref(), Ok(&expected), "{object}");
        }
        let asked = of(&json!({"instruction": "Add", "input": "1 2", "output": "3"}));
        let turns = vec![Turn::new("user", "Add\n\n1 2"), Turn::new("assistant", "3")];
        assert_eq!(asked, Ok(of_turns(turns)));
        let told = json!({"conversations": [user], "system": "S", "tools": "[{\"name\": \"add\"}]"});
        let turns = vec![Turn::new("system", "S"), Turn::new("user", "Q")];
        assert_eq!(of(&told), Ok(Conversation::Turns { turns, tools: vec![json!({"name": "add"})] }));
        let called = of(
            &json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"name": "add"}], "name": null}]}),
        );
        let more = Map::from_iter([("tool_calls".to_owned(), json!([{"name": "add"}]))]);
        assert_eq!(called, Ok(of_turns(vec![Turn { role: "assistant".into(), content: None, more }])));
        let completion = Conversation::Completion { prompt: "Q".into(), completion: "A".into() };
        assert_eq!(of(&json!({"prompt": "Q", "completion": "A"})), Ok(completion));
    }

    #[test]
    fn what_is_no_conversation_is_told_with_its_place() {
        for (object, words) in [
            (json!({"text": "a"}), "no \"messages\""),
            (json!({"messages": "a"}), "no list"),
            (json!({"messages": [{"role": "user", "content": "a"}, 3]}), "message 2: it is no object"),
            (json!({"messages": [{"content": "a"}]}), "message 1: it has no \"role\""),
            (json!({"messages": [{"role": "user"}]}), "no \"content\""),
            (json!({"messages": [{"role": "user", "content": null}]}), "\"content\" is no text"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "no texts"),
            (json!({"prompt": "a", "completion": []}), "two texts"),
            (json!({"messages": [], "tools": 3}), "\"tools\" is no list"),
            (json!({"messages": [], "tools": "add"}), "no list in JSON"),
            (json!({"messages": [], "system": 3}), "\"system\" is no text"),
            (json!({"instruction": 3, "output": "a"}), "\"instruction\" is no text"),
        ] {
            let problem = of(&object).unwrap_err();
            assert!(problem.contains(words), "{object}: {problem}");
        }
    }

    #[test]
    fn examples_say_which_of_their_tokens_are_learnt() {
        let tokenizer = learn(std::iter::empty(), 257).unwrap();
        let template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
        let tokenizer = tokenizer.with_template(template.into());
        let encoder = ChatEncoder::new(&tokenizer).unwrap();
        assert!(encoder.has_template());
        let turns = |all: &[(&str, &str)]| {
            let turns = all.iter().map(|(role, content)| Turn::new(role, *content)).collect();
            Conversation::Turns { turns, tools: Vec::new() }
        };
        let all = [
            turns(&[("user", "hm"), ("assistant", "so"), ("user", "x")]),
            turns(&[("user", "hm")]),
            Conversation::Completion { prompt: "ab".into(), completion: "cd".into() },
        ];
        let examples = encoder.examples(&all).unwrap();
        assert_eq!(examples.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 1]);
        let text = |example: &Example| tokenizer.decode(&example.ids).unwrap();
        let learnt =
            |example: &Example| example.is_learnt.iter().map(|learnt| u8::from(*learnt)).collect::<Vec<_>>();
        assert_eq!(
            (text(&examples[0][0]).as_str(), learnt(&examples[0][0])),
            ("u:hm;a:so;", vec![0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
        );
        let (end, id) = tokenizer.end_of_text().unwrap();
        assert_eq!(text(&examples[2][0]), format!("abcd{end}"));
        assert_eq!((learnt(&examples[2][0]), examples[2][0].ids.last()), (vec![0, 0, 1, 1, 1], Some(&id)));
        let bare = learn(std::iter::empty(), 257).unwrap();
        let (number, error) =
            ChatEncoder::new(&bare).unwrap().examples(&[all[2].clone(), all[0].clone()]).unwrap_err();
        assert_eq!((number, error.to_string().contains("no chat template")), (1, true));
    }

    #[test]
    fn a_token_is_half_of_a_question_and_half_of_its_answer_only_where_it_has_to_be() {
        // Pairs of letters are tokens.
        let texts = ["ab", "bc", "cd"].map(|pair| format!("{pair} ").repeat(9));
        let byte_level = learn(texts.into_iter(), 260).unwrap();
        let completion = |prompt: &str, more: &str| Conversation::Completion {
            prompt: prompt.into(),
            completion: more.into(),
        };
        let of = |tokenizer: &Tokenizer, prompt: &str, more: &str| {
            let examples =
                ChatEncoder::new(tokenizer).unwrap().examples(&[completion(prompt, more)]).unwrap();
            let Example { ids, is_learnt, .. } = examples[0][0].clone();
            let shown = ids.iter().map(|id| tokenizer.decode(&[*id]).unwrap());
            shown.zip(is_learnt).filter(|(text, _)| !text.starts_with('<')).collect::<Vec<_>>()
        };
        let expected = |all: &[(&str, bool)]| {
            all.iter().map(|(text, learnt)| ((*text).to_owned(), *learnt)).collect::<Vec<_>>()
        };
        assert_eq!(byte_level.encode("ab").unwrap().len(), 1);
        assert_eq!(of(&byte_level, "ab", "cd"), expected(&[("ab", false), ("cd", true)]));
        assert_eq!(of(&byte_level, "a", "b"), expected(&[("a", false), ("b", true)]));
        // As Llama 2's: a blank in front of each text, so that an answer by itself would have one.
        let blanks = json!({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            ]},
            "pre_tokenizer": null,
            "post_processor": null,
            "decoder": {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            "model": {
                "type": "BPE",
                "vocab": {"\u{2581}": 0, "a": 1, "b": 2, "ab": 3, "\u{2581}b": 4},
                "merges": [["a", "b"], ["\u{2581}", "b"]],
            },
        });
        let blanks = Tokenizer::of(blanks.to_string().into_bytes()).unwrap();
        assert_eq!(of(&blanks, "a", " b"), expected(&[(" ", false), ("a", false), (" b", true)]));
        assert_eq!(of(&blanks, "a", "b"), expected(&[(" ", false), ("ab", true)]));
    }

    #[test]
    fn blanks_are_of_the_part_in_which_they_stand() {
        // GPT-2's and Llama 3's cut blanks off the places of their tokens afterwards.
        let learnt_one = learn(std::iter::empty(), 257).unwrap();
        let mut file: Value = serde_json::from_slice(learnt_one.bytes()).unwrap();
        file["post_processor"] =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let tokenizer = Tokenizer::of(file.to_string().into_bytes()).unwrap();
        let encoder = ChatEncoder::new(&tokenizer).unwrap();
        let conversation = Conversation::Completion { prompt: "q\n".into(), completion: " a\n".into() };
        let example = encoder.examples(&[conversation]).unwrap().remove(0).remove(0);
        assert_eq!(example.is_learnt, [false, false, true, true, true, true]);
    }
}
