"""Each format, on a few lines as its real files have them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from streamer.errors import SettingsError, SourceError
from streamer.replay.datasets import DATASETS, LogOptions, open_log
from streamer.replay.events import Events

GOWALLA = (
    "0\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
    "0\t2010-10-18T22:17:43Z\t30.2691029532\t-97.7493953705\t420315\n"
    "1\t2010-10-17T23:42:03Z\t30.2557309927\t-97.7633857727\t316637\n"
)
TMALL = (
    "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type\n"
    "328862,323294,833,2882,2661,0829,0\n"
    "328862,844400,1271,2882,,0829,2\n"
    "234512,575153,1271,2882,2661,1111,3\n"
    "234512,996875,1271,4044,2661,0511,1\n"
)
TA_FENG_MERGED = (
    '"TRANSACTION_DT","CUSTOMER_ID","AGE_GROUP","PIN_CODE","PRODUCT_SUBCLASS","PRODUCT_ID","AMOUNT","ASSET","SALES_PRICE"\n'
    '"11/2/2000","01104905","45-49","115","110411","4710199010372","2","24","30"\n'
    '"11/1/2000","01849332","45-49","Others","120108","0078895770025","1","32","38"\n'
)
TA_FENG_HEADER = "日期;會員卡號;年齡;區域;商品分類;商品編碼;數量;成本;銷售\n".encode("big5")
TA_FENG_D11 = TA_FENG_HEADER + b"2000-11-01 00:00:00;00046855  ;D ;E ;110411;4710085120468;3;51;57\n"
TA_FENG_D01 = TA_FENG_HEADER + b"2001-01-13 00:00:00;00539166  ;E ;F ;130315;4714981010038;2;56;48\n"
AMAZON = "A1N4O8VOJZTDVB,B004A9SDD8,4.0,1383350400\nA2HQWU6HUKIEC7,0786280220,1.0,1376006400\n"


def events_of(path: Path, name: str | None = None, options: LogOptions | None = None) -> Events:
    with open_log(path, name, options) as log:
        batches = list(log.batches())
    assert len(batches) == 1
    return batches[0]


# the paper's five -----------------------------------------------------------------------------------------------------


def test_gowalla_check_ins_are_users_locations_and_seconds_in_the_order_of_time(write):
    events = events_of(write("loc-gowalla_totalCheckins.txt.gz", GOWALLA), "gowalla")
    assert events.users == ["1", "0", "0"]
    assert events.items == ["316637", "420315", "22847"]
    assert events.timestamps_s == [1287358923.0, 1287440263.0, 1287532527.0]
    assert events.item_features is None


def test_gowalla_coordinates_are_features_on_demand(write):
    options = LogOptions(item_features=("latitude:float", "longitude:float"))
    events = events_of(write("loc-gowalla_totalCheckins.txt", GOWALLA), "gowalla", options)
    assert events.item_features[0] == {"latitude": 30.2557309927, "longitude": -97.7633857727}


def test_tmall_days_are_of_2014_and_seller_category_and_brand_are_features(write):
    events = events_of(write("user_log_format1.csv", TMALL), "tmall")
    assert events.timestamps_s == [1399766400.0, 1409270400.0, 1409270400.0, 1415664000.0]
    assert events.users[0] == "234512"
    assert events.items[0] == "996875"
    about = dict(zip(events.items, events.item_features, strict=True))
    assert about["323294"] == {"cat_id": "833", "seller_id": "2882", "brand_id": "2661"}
    assert about["844400"] == {"cat_id": "1271", "seller_id": "2882"}


@pytest.mark.parametrize(
    ("types", "items"),
    [
        (("purchase",), {"844400"}),
        (("2",), {"844400"}),
        (("Click", "favourite"), {"323294", "575153"}),
        (("cart",), {"996875"}),
    ],
)
def test_tmall_actions_are_chosen_by_name_or_number(write, types, items):
    events = events_of(write("user_log_format1.csv", TMALL), "tmall", LogOptions(event_types=types))
    assert set(events.items) == items


def test_tmall_action_that_does_not_exist_is_told_with_those_that_do(write):
    with pytest.raises(SettingsError, match=r"no 'sell', only click, cart"):
        open_log(write("user_log_format1.csv", TMALL), "tmall", LogOptions(event_types=("sell",)))


def test_tmall_without_its_header_has_the_same_columns(write):
    headless = TMALL.split("\n", 1)[1]
    assert events_of(write("a.csv", headless), "tmall") == events_of(write("b.csv", TMALL), "tmall")


def test_tmall_day_that_is_no_day_is_malformed(write):
    with open_log(write("user_log_format1.csv", TMALL + "1,2,3,4,5,1332,0\n1,2,3,4,5,11110,0\n"), "tmall") as log:
        assert log.malformed.by_reason == {"bad_timestamp": 2}
        assert len(log) == 4


def test_ta_feng_merged_file_is_read_without_its_quotes(write):
    events = events_of(write("ta_feng_all_months_merged.csv", TA_FENG_MERGED), "ta-feng")
    assert events.users == ["01849332", "01104905"]
    assert events.items == ["0078895770025", "4710199010372"]
    assert events.timestamps_s == [973036800.0, 973123200.0]
    assert events.item_features[0] == {"PRODUCT_SUBCLASS": "120108"}
    assert events.user_features[0] == {"AGE_GROUP": "45-49", "PIN_CODE": "Others"}


def test_ta_feng_empty_lines_before_the_header_do_not_matter(write):
    with open_log(write("log.csv", "\n\n" + TA_FENG_MERGED + '"never",' + '"1",' * 7 + '"1"\n'), "ta-feng") as log:
        assert len(log) == 2
        assert [place.split(":")[0] for place in log.malformed.places] == ["line 6"]


def test_ta_feng_directory_of_months_is_one_log(write):
    write("D01", TA_FENG_D01)
    path = write("D11", TA_FENG_D11)
    events = events_of(path.parent, "ta-feng")
    assert events.users == ["00046855", "00539166"]
    assert events.items == ["4710085120468", "4714981010038"]
    assert events.timestamps_s == [973036800.0, 979344000.0]
    assert events.user_features[0] == {"AGE_GROUP": "D", "PIN_CODE": "E"}


def test_ta_feng_month_is_read_alone_and_by_a_pattern(write):
    path = write("D11", TA_FENG_D11)
    write("D01", TA_FENG_D01)
    assert events_of(path, "ta-feng").users == ["00046855"]
    assert events_of(path.parent / "D*", "ta-feng").users == ["00046855", "00539166"]


def test_amazon_keeps_ratings_above_the_average_of_their_user(write):
    lines = ["u1,B000000001,5.0,1", "u1,B000000002,3.0,2", "u1,B000000003,4.0,3", "u2,B000000001,5.0,4"]
    events = events_of(write("ratings_Books.csv", "\n".join(lines)), "amazon")
    assert list(zip(events.users, events.items, strict=True)) == [("u1", "B000000001")]


def test_amazon_threshold_replaces_the_average(write):
    events = events_of(write("ratings_Books.csv", AMAZON), "amazon", LogOptions(min_rating=1))
    assert events.users == ["A2HQWU6HUKIEC7", "A1N4O8VOJZTDVB"]
    assert events.timestamps_s == [1376006400.0, 1383350400.0]


def test_amazon_layout_with_the_item_first_is_told_by_its_ids(write):
    swapped = "\n".join(",".join([i, u, r, t]) for u, i, r, t in (line.split(",") for line in AMAZON.split()))
    options = LogOptions(min_rating=0)
    assert events_of(write("a.csv", swapped), "amazon", options) == events_of(write("b.csv", AMAZON), "amazon", options)


def test_amazon_file_with_a_header_and_milliseconds_is_read(write):
    text = "user_id,parent_asin,rating,timestamp\nAGKASBHYZPGTEPO6LWZPVJWB2BVA,B006GBITXC,3.0,1452647382000\n"
    events = events_of(write("Toys.csv", text), "amazon", LogOptions(min_rating=0))
    assert (events.users, events.items) == (["AGKASBHYZPGTEPO6LWZPVJWB2BVA"], ["B006GBITXC"])
    assert events.timestamps_s == [1452647382.0]


def test_amazon_reviews_as_json_are_held_against_the_average_too(write):
    line = '{{"reviewerID": "A1", "asin": "B00000000{}", "overall": {}, "unixReviewTime": 1252800000}}\n'
    events = events_of(write("reviews.json.gz", line.format(1, 5.0) + line.format(2, 2.0)), "amazon")
    assert events.items == ["B000000001"]


def test_amazon_reviews_as_json_have_the_same_item_as_csv_and_need_a_rating(write):
    line = '{"parent_asin": "B000000001", "asin": "B000000009", "user_id": "A1", "timestamp": 1400000000000%s}\n'
    options = LogOptions(min_rating=0)
    assert events_of(write("a.jsonl", line % ', "rating": 5'), "amazon", options).items == ["B000000001"]
    with pytest.raises(SourceError, match="no column 'rating' for rating"):
        open_log(write("b.jsonl", line % ""), "amazon")


def test_echonest_has_no_time_and_its_plays_are_a_threshold(write):
    user = "b80344d063b5ccb3212f76538f3d9e43d87dca9e"
    path = write("train_triplets.txt", f"{user}\tSOAKIMP12A8C130995\t1\n{user}\tSOBBMDR12A8C13253B\t7\n")
    events = events_of(path, "echonest")
    assert events.timestamps_s is None
    assert set(events.items) == {"SOAKIMP12A8C130995", "SOBBMDR12A8C13253B"}
    assert events_of(path, "echonest", LogOptions(min_rating=2)).items == ["SOBBMDR12A8C13253B"]


# other people's formats -----------------------------------------------------------------------------------------------

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\tshop:token\n1\t7\t4.0\t20\ts\n2\t8\t1.0\t10\tt\n"
ITEM = "item_id:token\tprice:float\tclass:token_seq\n7\t9.5\tjazz blues\n8\t\tpop\n"
USER = "user_id:token\tage:token\n1\t31\n"


def test_recbole_takes_features_from_the_log_and_from_the_files_beside_it(write):
    write("x.item.gz", ITEM)
    write("x.user", USER)
    events = events_of(write("x.inter.gz", INTER), "recbole")
    assert events.users == ["2", "1"]
    assert events.timestamps_s == [10.0, 20.0]
    assert events.item_features == [{"shop": "t", "class": "pop"}, {"shop": "s", "price": 9.5, "class": "jazz blues"}]
    assert events.user_features == [None, {"age": "31"}]


def test_recbole_features_are_only_those_asked_for(write):
    write("x.item", ITEM)
    write("x.user", USER)
    options = LogOptions(item_features=("class",), user_features=())
    events = events_of(write("x.inter", INTER), "recbole", options)
    assert events.item_features == [{"class": "pop"}, {"class": "jazz blues"}]
    assert events.user_features is None


def test_recbole_column_that_tells_items_apart_is_no_feature(write):
    rows = "".join(f"{n}\ttitle {n}\tg{n % 3}\n" for n in range(30))
    write("x.item", "item_id:token\ttitle:token_seq\tgenre:token\n" + rows)
    events = events_of(write("x.inter", "user_id:token\titem_id:token\n1\t7\n"), "recbole")
    assert events.item_features == [{"genre": "g1"}]


def test_recbole_archive_holds_the_files_beside_the_log_too(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, text in (
            ("x/x.inter", INTER),
            ("x/x.item", ITEM),
            ("x/README.md", "#"),
            ("__MACOSX/x/._x.inter", ""),
        ):
            archive.writestr(name, text)
    events = events_of(tmp_path / "x.zip")
    assert events.item_features[0] == {"shop": "t", "class": "pop"}


def test_recbole_feature_that_is_nowhere_is_told(write):
    with pytest.raises(SourceError, match=r"no column 'colour', and no x.item beside it"):
        open_log(write("x.inter", INTER), "recbole", LogOptions(item_features=("colour",)))


def test_lightgcn_line_is_a_user_and_its_items(write):
    with open_log(write("train.txt", "0 1 2 3\n1\n2  3\t4 \r\n\n"), "lightgcn") as log:
        (events,) = log.batches()
        assert sorted(zip(events.users, events.items, strict=True)) == [
            ("0", "1"), ("0", "2"), ("0", "3"), ("2", "3"), ("2", "4"),
        ]  # fmt: skip
        assert log.malformed.total == 0


def test_lightgcn_directory_is_train_and_test_together(write):
    write("test.txt", "0 9\n")
    path = write("train.txt", "0 1 2\n")
    write("user_list.txt", "org_id remap_id\n")
    assert sorted(events_of(path.parent, "lightgcn").items) == ["1", "2", "9"]


MOVIELENS = {
    "u.data": "196\t242\t3\t881250949\n186\t302\t4\t891717742\n",
    "ratings.dat": "196::242::3::881250949\n186::302::4::891717742\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n196,242,3.0,881250949\n186,302,4.0,891717742\n",
}


@pytest.mark.parametrize("name", MOVIELENS)
def test_movielens_is_read_in_all_its_layouts(write, name):
    path = write(name, MOVIELENS[name])
    events = events_of(path, "movielens")
    assert (events.users, events.items) == (["196", "186"], ["242", "302"])
    assert events.timestamps_s == [881250949.0, 891717742.0]
    assert events_of(path, None, LogOptions(min_rating=4)).items == ["302"]


def test_movielens_genres_and_people_are_features(write):
    write("movies.dat", "242::Les Misérables (1995)::Drama|Musical\n".encode("latin-1"))
    write("users.dat", "196::F::1::10::48067\n")
    events = events_of(write("ratings.dat", MOVIELENS["ratings.dat"]), "movielens")
    assert events.item_features == [{"genres": "Drama|Musical"}, None]
    assert events.user_features == [{"gender": "F", "age": "1", "occupation": "10"}, None]


U_ITEM = "{}|{}|01-Jan-1995||http://us.imdb.com/M/title-exact?x|0|0|0|{}|1|{}|0|0|0|0|0|0|0|0|0|0|0|0|0\n"


def test_movielens_genres_of_100k_are_flags_in_its_own_file(write):
    lines = U_ITEM.format(242, "Misérables, Les (1995)", 1, 1) + U_ITEM.format(302, "Other (1995)", 0, 0)
    write("u.item", lines.encode("latin-1"))
    path = write("u.data", MOVIELENS["u.data"])
    assert events_of(path, "movielens").item_features == [
        {"genres": "Animation|Children's|Comedy"},
        {"genres": "Children's"},
    ]
    asked = events_of(path, "movielens", LogOptions(item_features=("title", "genres")))
    assert asked.item_features[0] == {"title": "Misérables, Les (1995)", "genres": "Animation|Children's|Comedy"}
    asked = events_of(path, "movielens", LogOptions(item_features=("title",)))
    assert asked.item_features[0] == {"title": "Misérables, Les (1995)"}


def test_movielens_feature_that_is_nowhere_is_told(write):
    path = write("u.data", MOVIELENS["u.data"])
    with pytest.raises(
        SourceError, match=r"no column 'colour', and no movies\.csv or movies\.dat or u\.item beside it"
    ):
        open_log(path, "movielens", LogOptions(item_features=("colour",)))
    with pytest.raises(SourceError, match=r"no column 'shoe_size', and no users\.dat or u\.user beside it"):
        open_log(path, "movielens", LogOptions(user_features=("shoe_size",)))
    write("u.item", U_ITEM.format(242, "x", 1, 1))
    with pytest.raises(SourceError, match=r"u\.item: there is no column 'colour'"):
        open_log(path, "movielens", LogOptions(item_features=("colour",)))


def test_movielens_titles_with_commas_and_quotes_are_read(write):
    write("movies.csv", 'movieId,title,genres\n242,"American President, The ""x"" (1995)",Comedy|Drama\n302,A,Drama\n')
    events = events_of(write("ratings.csv", MOVIELENS["ratings.csv"]), "movielens")
    assert events.item_features == [{"genres": "Comedy|Drama"}, {"genres": "Drama"}]


# any columns ----------------------------------------------------------------------------------------------------------


def test_csv_columns_are_named_by_the_user(write):
    path = write("log.csv", "when,who,what,colour,price\n5,ann,x,red,1.5\n4,bob,y,,2\n")
    columns = {"user_id": "who", "item_id": "what", "timestamp": "when"}
    events = events_of(path, "csv", LogOptions(columns=columns, item_features=("colour", "price:float")))
    assert events.users == ["bob", "ann"]
    assert events.item_features == [{"price": 2.0}, {"colour": "red", "price": 1.5}]


def test_csv_without_a_header_has_numbered_columns(write):
    columns = {"user_id": "2", "item_id": "3", "timestamp": "1"}
    events = events_of(write("log.csv", "5,ann,x\n4,bob,y\n"), "csv", LogOptions(columns=columns))
    assert events.users == ["bob", "ann"]


def test_csv_header_can_be_counted_over(write):
    columns = {"user_id": "2", "item_id": "3", "timestamp": "1"}
    path = write("log.csv", "t,u,i\n5,ann,x\n4,bob,y\n")
    assert events_of(path, "csv", LogOptions(columns=columns, header=True)).users == ["bob", "ann"]


@pytest.mark.parametrize("first", ["1,2,7", "2,1,7", "3,1,2"])
def test_csv_first_line_that_has_the_numbers_of_columns_is_no_header(write, first):
    columns = {"user_id": "1", "item_id": "2", "timestamp": "3"}
    events = events_of(write("log.csv", f"{first}\nann,x,8\n"), "csv", LogOptions(columns=columns))
    user, item, _ = first.split(",")
    assert (events.users, events.items) == ([user, "ann"], [item, "x"])


def test_csv_columns_are_named_and_numbered_at_once(write):
    path = write("log.csv", "user_id,item_id,item_id,timestamp\nann,x,y,5\n")
    for number, item in (("2", "x"), ("3", "y")):
        assert events_of(path, "csv", LogOptions(columns={"item_id": number})).items == [item]


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t", "::"])
def test_csv_delimiter_is_seen_in_the_first_lines(write, delimiter):
    text = "user_id,item_id,timestamp\nann,x,5\nbob,y,4\n".replace(",", delimiter)
    assert events_of(write("log.csv", text), "csv").users == ["bob", "ann"]


def test_tsv_quotes_are_characters_like_others(write):
    path = write("log.tsv", 'user_id\titem_id\nann\t12" single\nbob\t7" single\n')
    assert sorted(events_of(path, "tsv").items) == ['12" single', '7" single']


def test_jsonl_takes_fields_of_any_depth_and_features_as_on_the_wire(write):
    lines = (
        '{"user_id": 7, "item_id": "x", "timestamp": "2014-11-11T00:00:00Z", "item_features": {"n": 3, "p": 1.5}}\n'
        '{"user_id": "é", "item_id": "y", "timestamp": 1, "user": {"land": "NL"}}\n'
    )
    path = write("log.jsonl", lines)
    events = events_of(path, "jsonl")
    assert (events.users, events.items, events.timestamps_s) == (["é", "7"], ["y", "x"], [1.0, 1415664000.0])
    assert events.item_features == [None, {"n": "3", "p": 1.5}]
    assert events_of(path, None, LogOptions(user_features=("user.land",))).user_features == [{"user.land": "NL"}, None]


def test_parquet_times_and_features_follow_their_types(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number, (kind, times) in enumerate(
        [(arrow.timestamp("us"), [5_000_000, 4_000_000]), (arrow.int64(), [5, 4]), (arrow.string(), ["5", "4"])]
    ):
        table = arrow.table(
            {
                "user_id": arrow.array([1, 2]),
                "item_id": arrow.array(["x", "y"]),
                "timestamp": arrow.array(times, kind),
                "price": arrow.array([1.5, None], arrow.float64()),
                "shop": arrow.array([7, 8], arrow.int32()),
            }
        )
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(table, path)
        events = events_of(path, None, LogOptions(item_features=("price", "shop")))
        assert (events.users, events.timestamps_s) == (["2", "1"], [4.0, 5.0])
        assert events.item_features == [{"shop": "8"}, {"price": 1.5, "shop": "7"}]


def test_parquet_row_without_an_item_is_counted_with_its_number(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"user_id": ["a", "b"], "item_id": ["x", None]}), tmp_path / "x.parquet")
    with open_log(tmp_path / "x.parquet") as log:
        assert log.malformed.places == ["row 2: missing_item_id"]


# guessing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("gowalla", "loc-gowalla_totalCheckins.txt.gz", GOWALLA),
        ("gowalla", "renamed.txt", GOWALLA),
        ("tmall", "user_log_format1.csv", TMALL),
        ("tmall", "tmall.csv.gz", TMALL),
        ("ta-feng", "ta_feng_all_months_merged.csv", TA_FENG_MERGED),
        ("ta-feng", "D11", TA_FENG_D11),
        ("amazon", "ratings_Books.csv", AMAZON),
        ("amazon", "books.csv", AMAZON),
        ("echonest", "train_triplets.txt", "u\tSOAKIMP12A8C130995\t1\n"),
        ("recbole", "x.inter", INTER),
        ("recbole", "x.txt", INTER),
        ("lightgcn", "train.txt", "0 1 2\n"),
        ("movielens", "u.data", MOVIELENS["u.data"]),
        ("csv", "log.csv", "user_id,item_id\na,b\n"),
        ("tsv", "log.tsv.gz", "user_id\titem_id\na\tb\n"),
        ("jsonl", "log.ndjson", '{"user_id": 1, "item_id": 2}\n'),
    ],
)
def test_format_is_guessed_from_the_name_or_the_first_lines(write, name, file, content):
    with open_log(write(file, content), options=LogOptions(min_rating=0) if name == "amazon" else None) as log:
        assert log.name == name


RATED = "user_id,item_id,timestamp,rating\nu1,i1,1500000000,5\nu1,i2,1500000001,4\nu2,i1,1500000002,3\n"


@pytest.mark.parametrize("file", ["ratings.csv", "ratings_x.csv", "u.data", "D11", "train.txt", "user_log_format1.csv"])
def test_header_that_names_user_and_item_counts_more_than_the_name_of_the_file(write, file):
    path = write(file, RATED)
    for where in (path, path.parent) if file.endswith(".csv") else (path,):
        with open_log(where) as log:
            assert (log.name, len(log), log.malformed.total) == ("csv", 3, 0)
            assert log.describe()["first_s"] == 1500000000.0


def test_header_with_tabs_between_is_tsv_whatever_the_name(write):
    with open_log(write("train.txt", RATED.replace(",", "\t"))) as log:
        assert (log.name, len(log)) == ("tsv", 3)


def test_header_counts_more_than_ids_of_products(write):
    with open_log(write("log.csv", "user_id,item_id,rating,timestamp\nu,B000000001,5,1\nu,B000000002,1,2\n")) as log:
        assert (log.name, len(log)) == ("csv", 2)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("ratings.csv", "u1,i1,1500000000,5\nu2,i2,1500000001,4\n"),
        ("ratings_x.csv", "u1,i1,1500000000,5\nu2,i2,1500000001,4\n"),
        ("train.txt", "1\t10\t5\n1\t11\t3\n"),
        ("train_triplets.txt", "u1 i1 5\n"),
        ("loc-gowalla_totalCheckins.txt", "u1\ti1\t5\n"),
    ],
)
def test_name_counts_only_if_the_first_lines_are_as_it_says(write, file, content):
    with pytest.raises(SourceError, match=r"cannot be guessed|there is no column 'user_id'"):
        open_log(write(file, content))


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("movielens", "ratings.csv", "1,10,3.5,1112486027\n1,20,4,1112484676\n"),
        ("amazon", "ratings_x.csv", "u1,short,5.0,1112486027\nu1,other,4.0,1112484676\n"),
        ("tmall", "user_log_format1.csv", "328862,323294,833,2882,2661,829,0\n"),
        ("tmall", "log.csv", TMALL.replace("seller_id", "merchant_id")),
        ("movielens", "log.txt", MOVIELENS["ratings.csv"].replace(",", "\t")),
        ("lightgcn", "train.txt", "1 10 5\n1 11 3\n"),
    ],
)
def test_name_or_lines_that_are_known_are_enough(write, name, file, content):
    with open_log(write(file, content)) as log:
        assert log.name == name


def test_format_that_was_guessed_is_told_and_one_that_was_named_is_not(write, caplog):
    path = write("u.data", MOVIELENS["u.data"])
    with caplog.at_level("INFO", "streamer.replay.datasets"):
        open_log(path, "movielens").close()
        assert caplog.messages == []
        open_log(path).close()
        assert caplog.messages == [f"reading {path} as movielens"]


def test_format_of_an_empty_file_is_told_by_its_name(write):
    with pytest.raises(SourceError, match="is empty"):
        open_log(write("log.csv", ""))


def test_format_that_cannot_be_guessed_is_asked_for(write):
    with pytest.raises(SourceError, match=r"cannot be guessed; name it: amazon, csv, .*tsv"):
        open_log(write("log.txt", "a b c\n"))


def test_every_format_has_its_name_and_a_line_of_help():
    expected = "gowalla tmall ta-feng amazon echonest recbole lightgcn movielens csv tsv jsonl parquet"
    assert set(DATASETS) == set(expected.split())
    assert all(format.name == name and format.help.endswith(".") for name, format in DATASETS.items())


# features -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "features"),
    [
        ("tea,12", {"a": "tea", "b": "12"}),
        (" tea , 1 2 ", {"a": "tea", "b": "1 2"}),
        ("green tea,", {"a": "green tea"}),
        (",12", {"b": "12"}),
        (" ,", None),
        ("\ttea\u3000,12", {"a": "tea", "b": "12"}),
    ],
)
def test_features_are_without_padding_and_what_is_empty_is_none(write, cells, features):
    path = write("log.csv", f"user_id,item_id,a,b\nann,x,{cells}\n")
    events = events_of(path, "csv", LogOptions(item_features=("a", "b")))
    assert (events.item_features or [None]) == [features]


def test_features_are_cut_to_what_the_wire_takes(write):
    write("x.item", f"item_id:token\tstory:token\n7\t{'s' * 300}\n")
    events = events_of(write("x.inter", f"user_id:token\titem_id:token\tnote:token\n1\t7\t{'n' * 300}\n"), "recbole")
    assert events.item_features == [{"story": "s" * 256, "note": "n" * 256}]
    line = '{"user_id": 1, "item_id": 2, "item_features": {"a": "%s", "b": [1], "c": null, "d": true}}' % ("a" * 300)
    assert events_of(write("log.jsonl", line), "jsonl").item_features == [{"a": "a" * 256, "d": "true"}]


def test_features_of_events_are_right_in_every_chunk_and_pass(write):
    rows = [f"u{n % 3},i{n % 5},{n % 4},c{n % 7},{'' if n % 2 else n}" for n in range(100)]
    path = write("log.csv", "user_id,item_id,timestamp,colour,size\n" + "\n".join(rows))
    options = LogOptions(item_features=("colour",), user_features=("size:float",))
    expected = [(f"i{n % 5}", f"c{n % 7}", None if n % 2 else float(n)) for n in range(100)]
    with open_log(path, "csv", options) as log:
        for pass_seed in (None, 1):
            found = [
                (item, about["colour"], (known or {}).get("size"))
                for events in log.batches(7, pass_seed)
                for item, about, known in zip(
                    events.items,
                    events.item_features,
                    events.user_features or [None] * len(events),
                    strict=True,
                )
            ]
            assert sorted(found, key=str) == sorted(expected, key=str)


def test_many_different_features_are_made_one_by_one_with_the_same_result(write, monkeypatch):
    path = write("log.csv", "user_id,item_id,colour\n" + "".join(f"u,i{n},c{n}\n" for n in range(20)))
    shared = events_of(path, "csv", LogOptions(item_features=("colour",)))
    monkeypatch.setattr("streamer.replay.datasets.features.MOST_SHARED", 5)
    assert events_of(path, "csv", LogOptions(item_features=("colour",))) == shared
    assert all(f == {"colour": f"c{i[1:]}"} for i, f in zip(shared.items, shared.item_features, strict=True))
