//! JSON read into a value, within a budget.

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{JsonError, reserved};

/// How deep a value may be nested: one level less than `serde_json` allows, so that the reason is known.
const MAX_DEPTH: usize = 126;
/// What a member of an object takes besides its key and value: the key's `String` and its table entry.
const MEMBER: usize = size_of::<String>() + 3 * size_of::<usize>();

/// Reads JSON text as a value that takes at most about `limit` bytes of memory.
pub(super) fn decode(text: &[u8], limit: usize) -> Result<Value, JsonError> {
    reserved::check(text)?;
    let budget = Budget { left: Cell::new(limit), over: Cell::new(None) };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Node { budget: &budget, depth: 0 }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| match budget.over.get() {
        Some(Over::Size) => JsonError::TooLarge { limit },
        Some(Over::Depth) => JsonError::TooDeep { limit: MAX_DEPTH },
        None => JsonError::Invalid(error.into()),
    })
}

struct Budget {
    left: Cell<usize>,
    over: Cell<Option<Over>>,
}

#[derive(Clone, Copy)]
enum Over {
    Size,
    Depth,
}

impl Budget {
    fn spend<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.over.set(Some(Over::Size));
                Err(E::custom("the value is over its budget"))
            }
        }
    }
}

/// One value, at some depth.
#[derive(Clone, Copy)]
struct Node<'a> {
    budget: &'a Budget,
    depth: usize,
}

impl Node<'_> {
    fn inner<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            self.budget.over.set(Some(Over::Depth));
            return Err(E::custom("the value is nested too deep"));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.budget.spend(size_of::<Value>())?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.budget.spend(value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut members = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if key == reserved::NUMBER {
                // No text has this name: it is a number, and another crate enables `arbitrary_precision`.
                let digits = access.next_value::<String>()?;
                return digits.parse().map(Value::Number).map_err(serde::de::Error::custom);
            }
            self.budget.spend(MEMBER + key.len())?;
            members.insert(key, access.next_value_seed(inner)?);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn a_value_within_its_budget_is_what_serde_json_reads() {
        let text = r#"{"a":[1,-2,1.5e300,18446744073709551615,true,null,"x\u00e9\n"],"b":{},"a b":{"c":[[]]},"a":1}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(decode(text.as_bytes(), 1 << 20).unwrap(), expected);
        for text in ["", "{", "[1,]", "nul", "1 2", "\"\\ud800\"", "{\"a\":1}}"] {
            assert!(matches!(decode(text.as_bytes(), 1 << 20), Err(JsonError::Invalid(_))), "{text}");
        }
    }

    #[test]
    fn a_number_is_read_as_one_also_if_another_crate_enables_arbitrary_precision() {
        use serde::de::value::{Error, MapDeserializer};

        let budget = Budget { left: Cell::new(1 << 20), over: Cell::new(None) };
        for (digits, expected) in
            [("15", Some(Value::from(15))), ("-1.5", Some(Value::from(-1.5))), ("x", None)]
        {
            let number = MapDeserializer::<_, Error>::new([(reserved::NUMBER, digits)].into_iter());
            assert_eq!(Node { budget: &budget, depth: 0 }.deserialize(number).ok(), expected, "{digits}");
        }
        for name in [reserved::NUMBER, "$serde_json::private::RawValue"] {
            let text = format!(r#"[{{"{name}":"1"}}]"#);
            assert!(matches!(decode(text.as_bytes(), 1 << 20), Err(JsonError::Reserved)), "{text}");
        }
    }

    #[test]
    fn the_budget_counts_what_is_decoded_and_not_the_text() {
        let size = size_of::<Value>();
        let text = b"[1,2,3,4,5,6,7,8,9]";
        for (limit, fits) in [(10 * size - 1, false), (10 * size, true), (10 * size + 1, true)] {
            match decode(text, limit) {
                Ok(value) => assert!(fits && value.as_array().is_some_and(|items| items.len() == 9)),
                Err(error) => {
                    assert!(!fits && matches!(error, JsonError::TooLarge { limit: l } if l == limit))
                }
            }
        }
        let members: Vec<_> = (0..1000).map(|number| format!("\"{number:04}\":0")).collect();
        let text = format!("{{{}}}", members.join(","));
        assert!(matches!(decode(text.as_bytes(), 8 * text.len()), Err(JsonError::TooLarge { .. })));
    }

    #[test]
    fn a_value_that_is_too_deep_is_an_error_of_its_own() {
        for (depth, fits) in
            [(MAX_DEPTH - 1, true), (MAX_DEPTH, true), (MAX_DEPTH + 1, false), (100_000, false)]
        {
            match decode(nested(depth).as_bytes(), 1 << 30) {
                Ok(_) => assert!(fits, "{depth}"),
                Err(error) => {
                    assert!(!fits && matches!(error, JsonError::TooDeep { .. }), "{depth} {error:?}")
                }
            }
        }
    }
}
