//! How often does a test try what is rare?

/// Says how often, for long runs.
const VARIABLE: &str = "SYNCGUARD_TRIALS";

/// How many trials a test makes: as many as it usually does, or as many as `SYNCGUARD_TRIALS` says.
///
/// # Panics
///
/// When the variable is not a number above zero: zero trials prove nothing.
pub fn trials(usually: u32) -> u32 {
    match std::env::var(VARIABLE) {
        Err(_) => usually,
        Ok(text) => match text.parse() {
            Ok(number) if number > 0 => number,
            _ => panic!("{VARIABLE} is not a number above zero"),
        },
    }
}
