//! What does a config file say?
//!
//! Reading alone, without a look at any other file: the fuzz target in `fuzz/` takes this file as it is. A refusal never
//! repeats what stands in the file, because a password may stand anywhere in it. That is why the fields are taken out by
//! hand: a derived reader quotes the words it does not know.

use std::path::PathBuf;

use toml::{Table, Value};

/// Where the locks must be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Require {
    Remote,
    Local,
}

/// The fields of a config file.
#[derive(Default)]
pub(crate) struct ConfigFile {
    pub(crate) url: Option<String>,
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) require: Option<Require>,
}

/// Reads the text of a config file, or says why not.
pub(crate) fn parse(text: &str) -> Result<ConfigFile, String> {
    // Only the parser's own message: its full form quotes the line.
    let table: Table = toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())?;
    let mut config = ConfigFile::default();
    for (name, value) in table {
        match (name.as_str(), value) {
            ("url", Value::String(url)) => config.url = Some(url),
            ("url_file", Value::String(path)) => config.url_file = Some(path.into()),
            ("require", Value::String(word)) if word == "remote" => config.require = Some(Require::Remote),
            ("require", Value::String(word)) if word == "local" => config.require = Some(Require::Local),
            ("require", _) => return Err("`require` is neither \"remote\" nor \"local\"".to_owned()),
            ("url" | "url_file", _) => return Err(format!("`{name}` is not a text in quotes")),
            _ => return Err(unknown(&name)),
        }
    }
    Ok(config)
}

/// A misspelt name is told; what could be anything else is not.
fn unknown(name: &str) -> String {
    let is_word = name.len() <= 16 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_word && !name.is_empty() { format!("unknown field `{name}`") } else { "an unknown field".to_owned() }
}

/// Any text: nothing panics, and no refusal is long or shows a password, wherever in the file it stands.
#[cfg(any(test, fuzzing))]
pub(crate) fn judge(bytes: &[u8]) {
    const PASSWORD: &str = "canary-7Yq2";
    let text = String::from_utf8_lossy(bytes);
    let url = format!("redis://user:{PASSWORD}@host");
    for text in [
        text.to_string(),
        format!("url = \"{url}\"\n{text}"),
        format!("{text}\nurl = \"{url}\"\n"),
        format!("{text} = \"{url}\"\n"),
        format!("{text}{url}\n"),
        format!("\"{url}\"{text}\n"),
    ] {
        if let Err(refusal) = parse(&text) {
            assert!(refusal.len() <= 1_024, "a message of {} bytes", refusal.len());
            assert!(!refusal.contains(PASSWORD), "the refusal shows a password: {refusal}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|character| character.to_string().into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..4),
            proptest::sample::select(vec![
                "url",
                "url_file",
                "require",
                "urll",
                " = ",
                "=",
                "\"",
                "'",
                "\"\"\"",
                "\n",
                "[",
                "]",
                "[[",
                "{",
                "}",
                ",",
                ".",
                "#",
                "remote",
                "\"local\"",
                "5",
                "true",
                "1979-05-27",
                "\\u0000",
                "\\",
                "inf",
                "0x",
            ])
            .prop_map(|piece| piece.as_bytes().to_vec()),
            Just(vec![b'a'; 1_100]),
        ];
        proptest::collection::vec(piece, 0..7).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_config_file_makes_the_command_panic_or_tell(bytes in text()) {
            super::judge(&bytes);
        }
    }

    #[test]
    fn what_is_meant_is_read_and_a_misspelt_name_is_told() {
        let config = super::parse("url_file = \"/run/url\"\nrequire = \"remote\"\n").expect("sound");
        assert_eq!((config.url, config.url_file), (None, Some("/run/url".into())));
        assert_eq!(config.require, Some(super::Require::Remote));
        let refusal = |text: &str| super::parse(text).err().expect("refused");
        assert_eq!(refusal("urll = \"x\""), "unknown field `urll`");
        assert_eq!(refusal("url = 5"), "`url` is not a text in quotes");
        assert_eq!(refusal("require = \"both\""), "`require` is neither \"remote\" nor \"local\"");
    }

    #[test]
    fn a_password_in_the_wrong_place_is_not_repeated() {
        for text in ["require", "url", "url_file", "urls", "a.b", "[url]\nx", "require = \"local\"\nrequire", ""] {
            super::judge(text.as_bytes());
        }
    }
}
