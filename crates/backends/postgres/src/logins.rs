//! To which ways of logging in does a client agree?
//!
//! libpq's `require_auth`. The server decides how a client logs in: one that took the server's place asks for the password as it
//! is. The driver answers all of them, so the question is read before it.

use syncguard_core::{LockError, Result};

/// One of the ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// The server lets everybody in, or knows the client by its certificate.
    None,
    /// The password as it is.
    Password,
    Md5,
    Scram,
}

impl Login {
    const ALL: [Self; 4] = [Self::None, Self::Password, Self::Md5, Self::Scram];

    /// Its place in a set.
    fn bit(self) -> u8 {
        match self {
            Self::None => 1,
            Self::Password => 2,
            Self::Md5 => 4,
            Self::Scram => 8,
        }
    }

    /// As libpq calls it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Password => "password",
            Self::Md5 => "md5",
            Self::Scram => "scram-sha-256",
        }
    }
}

/// The ways that are agreed to; all of them if nobody says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logins(u8);

impl Default for Logins {
    fn default() -> Self {
        Self(Login::ALL.into_iter().map(Login::bit).sum())
    }
}

impl Logins {
    /// Reads names with commas between. With a `!` before each they are those that are not agreed to.
    pub(crate) fn parse(list: &str) -> Result<Self> {
        let excluding = list.starts_with('!');
        let mut named = 0;
        for word in list.split(',') {
            let name = if excluding { word.strip_prefix('!') } else { Some(word) };
            // The driver cannot log in by gss, sspi or oauth: to agree to them changes nothing.
            if !name.is_some_and(|name| ["gss", "sspi", "oauth"].contains(&name)) {
                let known = Login::ALL.into_iter().find(|login| Some(login.word()) == name);
                named |= known.ok_or_else(malformed)?.bit();
            }
        }
        Ok(Self(if excluding { Self::default().0 & !named } else { named }))
    }

    pub(crate) fn include(self, login: Login) -> bool {
        self.0 & login.bit() != 0
    }
}

fn malformed() -> LockError {
    LockError::invalid("`require_auth` is not a list of none, password, md5 and scram-sha-256")
        .with_hint("require_auth=scram-sha-256, or !password,!md5 for all but these")
}
