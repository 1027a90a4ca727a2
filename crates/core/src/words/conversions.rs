//! Which forms of a word does a caller have at hand?
//!
//! Text that is still to be validated, or the word itself, which is not parsed a second time.

use std::time::Duration;

use crate::{Key, Label, Result, Ttl};

/// What can name a lock: text, which is validated when the request is used, or a [`Key`].
pub trait IntoKey {
    /// Validates, unless it is a [`Key`] already.
    ///
    /// # Errors
    /// As [`Key::new`].
    fn into_key(self) -> Result<Key>;
}

/// What can be the length of a lease: a [`Duration`] or a [`Ttl`].
pub trait IntoTtl {
    /// Validates, unless it is a [`Ttl`] already.
    ///
    /// # Errors
    /// As [`Ttl::new`].
    fn into_ttl(self) -> Result<Ttl>;
}

/// What can be a holder's label: text or a [`Label`].
pub trait IntoLabel {
    /// Validates, unless it is a [`Label`] already.
    ///
    /// # Errors
    /// As [`Label::new`].
    fn into_label(self) -> Result<Label>;
}

macro_rules! from_text {
    ($($text:ty),*) => {
        $(
            impl IntoKey for $text {
                fn into_key(self) -> Result<Key> {
                    Key::new(self)
                }
            }

            impl IntoLabel for $text {
                fn into_label(self) -> Result<Label> {
                    Label::new(self)
                }
            }
        )*
    };
}

from_text!(&str, String, &String, Box<str>, std::borrow::Cow<'_, str>);

impl IntoKey for Key {
    fn into_key(self) -> Result<Key> {
        Ok(self)
    }
}

impl IntoKey for &Key {
    fn into_key(self) -> Result<Key> {
        Ok(self.clone())
    }
}

impl IntoTtl for Duration {
    fn into_ttl(self) -> Result<Ttl> {
        Ttl::new(self)
    }
}

impl IntoTtl for Ttl {
    fn into_ttl(self) -> Result<Ttl> {
        Ok(self)
    }
}

impl IntoLabel for Label {
    fn into_label(self) -> Result<Label> {
        Ok(self)
    }
}

impl IntoLabel for &Label {
    fn into_label(self) -> Result<Label> {
        Ok(self.clone())
    }
}
