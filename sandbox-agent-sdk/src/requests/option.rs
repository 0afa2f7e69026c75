//! The answers that an agent offers to a request for a permission.

use serde::Serialize;
use serde_json::{Value, json};

use crate::convert::open_enum::open_enum;

open_enum! {
    /// What choosing an option means.
    pub enum PermissionKind {
        /// This time.
        AllowOnce = "allow_once",
        /// From now on.
        AllowAlways = "allow_always",
        /// Not this time.
        RejectOnce = "reject_once",
        /// Never.
        RejectAlways = "reject_always",
    }
}

impl PermissionKind {
    /// Whether choosing such an option allows what the agent asks for. A kind that this version does not know
    /// allows nothing.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

/// One of the answers that the agent offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PermissionOption {
    /// The id by which it is chosen.
    #[serde(rename = "optionId")]
    pub id: String,
    /// What to show.
    pub name: String,
    /// What it means; `None` if the agent does not say.
    pub kind: Option<PermissionKind>,
    /// The option as it came; not serialised.
    #[serde(skip)]
    pub raw: Value,
}

impl PermissionOption {
    /// Reads the options of a request. What has no id cannot be chosen and is left to the raw request.
    ///
    /// Early servers name an option `id` instead of `optionId` and leave out its kind; the id is the name of the
    /// kind there.
    pub(super) fn read_all(params: &Value) -> Vec<Self> {
        let options = params.get("options").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let read = options.iter().filter_map(|option| {
            let text = |name: &str| option.get(name).and_then(Value::as_str);
            let id = text("optionId").or_else(|| text("id"))?.to_owned();
            let name = text("name").unwrap_or(&id).to_owned();
            let named = || match PermissionKind::from(id.as_str()) {
                PermissionKind::Other(_) => None,
                kind => Some(kind),
            };
            let kind = text("kind").map(PermissionKind::from).or_else(named);
            Some(Self { kind, id, name, raw: option.clone() })
        });
        read.collect()
    }

    /// The first option of the first kind that is offered.
    pub(super) fn find<'a>(options: &'a [Self], kinds: &[PermissionKind]) -> Option<&'a Self> {
        kinds.iter().find_map(|kind| options.iter().find(|option| option.kind.as_ref() == Some(kind)))
    }
}

/// Refusing: by an option that rejects if there is one, else by cancelling.
pub(super) fn refusal(options: &[PermissionOption]) -> Value {
    match PermissionOption::find(options, &[PermissionKind::RejectOnce, PermissionKind::RejectAlways]) {
        Some(option) => selected(&option.id),
        None => cancelled(),
    }
}

pub(super) fn selected(id: &str) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": id}})
}

pub(super) fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PermissionKind, PermissionOption, cancelled, refusal, selected};

    #[test]
    fn an_option_of_an_unknown_kind_is_kept_and_one_without_an_id_is_left_out() {
        let params = json!({"options": [
            {"optionId": "y", "name": "Yes", "kind": "allow_once", "_meta": {"hot": true}},
            {"optionId": "z", "kind": "brand_new"}, {"name": "no id"}, 5, {"optionId": 7}]});
        let options = PermissionOption::read_all(&params);
        assert_eq!(options.len(), 2);
        assert_eq!(options[0].raw["_meta"]["hot"], true);
        assert_eq!(options[1].kind, Some(PermissionKind::Other("brand_new".into())));
        assert_eq!(options[1].name, "z");
        assert!(!options[1].kind.as_ref().unwrap().is_allow());
    }

    #[test]
    fn early_servers_say_the_kind_by_the_id() {
        let options = PermissionOption::read_all(&json!({"options": [
            {"id": "allow_once", "name": "Allow once"}, {"id": "deny", "name": "Deny"},
            {"id": "allow_always", "kind": "reject_once"}]}));
        assert_eq!(options[0].kind, Some(PermissionKind::AllowOnce));
        assert_eq!(options[1].kind, None);
        assert_eq!(options[2].kind, Some(PermissionKind::RejectOnce), "what the agent says counts");
    }

    #[test]
    fn refusing_takes_an_option_that_rejects_and_cancels_without_one() {
        let table = [
            (
                json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]),
                Some("n"),
            ),
            (
                json!([{"optionId": "never", "kind": "reject_always"}, {"optionId": "n", "kind": "reject_once"}]),
                Some("n"),
            ),
            (json!([{"optionId": "never", "kind": "reject_always"}]), Some("never")),
            (json!([{"optionId": "a", "kind": "allow_always"}]), None),
            (json!([{"id": "deny", "name": "Deny"}]), None),
            (json!("nonsense"), None),
            (json!(null), None),
        ];
        for (options, id) in table {
            let expected = id.map_or_else(cancelled, selected);
            assert_eq!(
                refusal(&PermissionOption::read_all(&json!({"options": options}))),
                expected,
                "{options}"
            );
        }
        assert_eq!(refusal(&PermissionOption::read_all(&json!(null))), cancelled());
    }
}
