BEGIN TRANSACTION;
CREATE TABLE adapters (
	policy VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	path TEXT NOT NULL, 
	content_hash VARCHAR(64) NOT NULL, 
	parent_version INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	method VARCHAR(16) NOT NULL, 
	metrics TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_adapters PRIMARY KEY (policy, version)
);
INSERT INTO "adapters" VALUES('patina-tiny',1,'{home}/adapters/patina-tiny@1.96c037c31c38','96c037c31c3885d4ee21dc47c7daa7d61cca2788cff3563f8eaad499087d463d',0,'published','2 turns: 2 complaints, 0 thanks; "Shorter please, and no emoji."','combine','{"loss":0.02437978691092777,"live_samples":20.0,"live_tokens":686.0,"effective_samples":20.0,"kl_step":0.03509041836476088,"ratio_mean":1.00000001320686,"ratio_max":1.0000016689300537,"staleness_mean":1.0,"entropy":0.21702559590991316,"kl_base_k2":1.6683426554701785e-13,"kl_base_k3":1.6465739960466905e-13,"kl_base":1.646574499821388e-13,"directive_loss":0.024379786910925128,"directive_tokens":686.0,"topk_overlap":0.9646501527235737,"teacher_shift":0.06329690275009973,"reported_tokens":686.0,"gradient_norm":0.04658696800470352,"optimizer_steps":6.0,"step_scale":1.0,"kl_to_base":0.0222713599090352,"loss_after":0.009599929556316056,"entropy_after":0.1825578976504005,"estimate_s":25.516,"turns":2,"replayed":0,"anchors":16,"learning_rate":0.005,"kept":1.0,"teach_s":0.8013322789993254,"train_s":11.91034611199575,"gate_s":3.703547401004471,"gate":{"after":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8571428571428571,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":11.375,"length":15.107142857142858,"entropy":0.2275900684762746,"kl":0.08489020704629573,"kl_by_style":{"no_emoji":0.14066679030656815,"json":0.0003889828925215018,"plain":0.11969075724482536,"casual":0.12404055893421173,"spanish":0.008692212092379728,"verbose":0.11301899701356888,"prose":0.1260305680334568,"english":0.13176895678043365,"formal":0.07230241208647688,"markdown":0.13788585364818573,"emoji":0.09573045745491982,"concise":0.015534269157797098},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}},"base":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8928571428571429,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.583333333333336,"length":35.035714285714285,"entropy":0.2736402147316507,"kl":0.0,"kl_by_style":{"no_emoji":0.0,"json":0.0,"plain":0.0,"casual":0.0,"spanish":0.0,"verbose":0.0,"prose":0.0,"english":0.0,"formal":0.0,"markdown":0.0,"emoji":0.0,"concise":0.0},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":28}}},"wishes":[{"turns":["turn_06610ab47710c6623f523b"],"labels":[["shorter","no_emoji"]],"state":"active","overruled_by":"","version":1,"before":0.08333333333333333,"now":0.9166666666666666,"best":0.9166666666666666}],"unlearning":0,"settings":{"method":"combine","model_name":"patina-tiny","lora_rank":16,"teacher_model_name":"","learning_rate":null,"batch_size":4,"max_steps":0,"loss_fn":"ppo","kl_loss_coef":0.02,"save_interval":20,"resume_from_ckpt":"","w_opd":1.0,"w_rl":0.3,"eval_mode":false,"prm_m":3,"prm_temperature":0.6,"prm_max_tokens":4096,"proxy_host":"127.0.0.1","proxy_port":30102,"served_model_name":"","api_key":null,"record_dir":"","wandb_project":"","custom_rm_path":"","backend":"embedded","upstream":"","upstream_auth":"key","cors_origins":"","upstream_api_key":"","judge":"auto","judge_api_base":"","judge_api_key":"","rubric":"","home":"{home}","database":"","backend_port":0,"vllm_python":"","vllm_args":"","gpu_memory_share":0.0,"colocate":"share","workers":1,"sync":"none","max_hold":10.0,"quantize":"none","max_model_len":0,"tool_call_parser":"","tinker_base_url":"","tinker_api_key":"","tinker_model":"","adapter_slots":8,"threads":0,"learning":{"teacher":"base","teacher_hints":4,"teacher_residual":0.3,"teacher_residual_offhint":0.3,"teacher_min_p":0.1,"hint_gate":true,"opd_support":"topk","support_of":"student","support_mass":"tail","top_k":20,"alpha":null,"opd_clip":1.0,"opd_centred":false,"baseline":"running","blame_complaints":false,"steps_per_batch":6,"lr_decay":true,"resample":true,"rate_by_signal":true,"adam_beta1":0.6,"update_clip":1.0,"max_kl_step":0.5,"tinker_gradients":"auto","anchors":16,"replay":2,"max_staleness":8},"max_wait_s":60.0,"seed":0},"unused_turns":{"turn_06610ab4758530a912d6e1":"no_signal","turn_06610ab479c2980ac1a0b4":"no_signal"}}',1795548483.17891);
INSERT INTO "adapters" VALUES('patina-tiny',2,'{home}/adapters/patina-tiny@2.5f904d01f69d','5f904d01f69dc9773a8f00dfd6c8ecca81f493ebbe7d5ac607711fbe0671a448',1,'published','3 turns: 2 complaints, 1 thanks; "Shorter please, and no emoji."','combine','{"loss":0.03098843833868159,"live_samples":21.0,"live_tokens":430.0,"effective_samples":21.0,"kl_step":0.08877127149039446,"ratio_mean":1.0000000950902008,"ratio_max":1.0000020265579224,"staleness_mean":0.9995613107847613,"entropy":0.21921927091167417,"kl_base_k2":0.1027379639224734,"kl_base_k3":0.07350080416586553,"kl_base":0.07350081021364151,"directive_loss":0.041239420119381975,"directive_tokens":424.0,"topk_overlap":0.8349056458979283,"teacher_shift":0.14998962768059187,"reported_tokens":424.0,"policy_loss":-0.013476206921041012,"policy_tokens":6.0,"clip_fraction":0.0,"gradient_norm":0.11253266781568527,"optimizer_steps":6.0,"step_scale":1.0,"kl_to_base":0.07757051806740577,"loss_after":0.0017305552319157869,"entropy_after":0.2069320976625868,"estimate_s":25.516,"turns":3,"replayed":0,"anchors":16,"learning_rate":0.003833333333333333,"kept":1.0,"teach_s":1.2117247330024838,"train_s":13.036456613001064,"gate_s":2.1896506269986276,"gate":{"after":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8571428571428571,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":10.208333333333334,"length":28.25,"entropy":0.2389637199230492,"kl":0.03628941487529248,"kl_by_style":{"no_emoji":0.014697283739224076,"json":0.0005525305750779808,"plain":0.022792814299464226,"casual":0.08762592822313309,"spanish":0.014601978783806166,"verbose":0.027139599435031414,"prose":0.02385940309613943,"english":0.021922648884356022,"formal":0.06837570123995344,"markdown":0.05170196667313576,"emoji":0.019854840822517872,"concise":0.06934904307126999},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}},"base":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8928571428571429,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.583333333333336,"length":35.035714285714285,"entropy":0.2736402147316507,"kl":0.0,"kl_by_style":{"no_emoji":0.0,"json":0.0,"plain":0.0,"casual":0.0,"spanish":0.0,"verbose":0.0,"prose":0.0,"english":0.0,"formal":0.0,"markdown":0.0,"emoji":0.0,"concise":0.0},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":28}}},"wishes":[{"turns":["turn_06610ab480f4e61e02b666"],"labels":[["shorter","no_emoji"]],"state":"active","overruled_by":"","version":2,"before":0.9166666666666666,"now":0.8333333333333334,"best":0.9167}],"unlearning":0,"settings":{"method":"combine","model_name":"patina-tiny","lora_rank":16,"teacher_model_name":"","learning_rate":null,"batch_size":4,"max_steps":0,"loss_fn":"ppo","kl_loss_coef":0.02,"save_interval":20,"resume_from_ckpt":"","w_opd":1.0,"w_rl":0.3,"eval_mode":false,"prm_m":3,"prm_temperature":0.6,"prm_max_tokens":4096,"proxy_host":"127.0.0.1","proxy_port":30102,"served_model_name":"","api_key":null,"record_dir":"","wandb_project":"","custom_rm_path":"","backend":"embedded","upstream":"","upstream_auth":"key","cors_origins":"","upstream_api_key":"","judge":"auto","judge_api_base":"","judge_api_key":"","rubric":"","home":"{home}","database":"","backend_port":0,"vllm_python":"","vllm_args":"","gpu_memory_share":0.0,"colocate":"share","workers":1,"sync":"none","max_hold":10.0,"quantize":"none","max_model_len":0,"tool_call_parser":"","tinker_base_url":"","tinker_api_key":"","tinker_model":"","adapter_slots":8,"threads":0,"learning":{"teacher":"base","teacher_hints":4,"teacher_residual":0.3,"teacher_residual_offhint":0.3,"teacher_min_p":0.1,"hint_gate":true,"opd_support":"topk","support_of":"student","support_mass":"tail","top_k":20,"alpha":null,"opd_clip":1.0,"opd_centred":false,"baseline":"running","blame_complaints":false,"steps_per_batch":6,"lr_decay":true,"resample":true,"rate_by_signal":true,"adam_beta1":0.6,"update_clip":1.0,"max_kl_step":0.5,"tinker_gradients":"auto","anchors":16,"replay":2,"max_staleness":8},"max_wait_s":60.0,"seed":0},"unused_turns":{"turn_06610ab4844a6a573a32d8":"no_signal"}}',1.79554849848961114878e+09);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0007');
CREATE TABLE alias_moves (
	move_id INTEGER NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	moved_at FLOAT NOT NULL, 
	"by" VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_alias_moves PRIMARY KEY (move_id)
);
INSERT INTO "alias_moves" VALUES(1,'patina-tiny',1,1795548483.17891,'trainer');
INSERT INTO "alias_moves" VALUES(2,'patina-tiny',2,1.79554849848961114878e+09,'trainer');
CREATE TABLE controls (
	name VARCHAR(32) NOT NULL, 
	value TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_controls PRIMARY KEY (name)
);
CREATE TABLE feedback (
	feedback_id VARCHAR(64) NOT NULL, 
	turn_id VARCHAR(64) NOT NULL, 
	score FLOAT, 
	text TEXT NOT NULL, 
	idempotency_key VARCHAR(256) NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_feedback PRIMARY KEY (feedback_id), 
	CONSTRAINT fk_feedback_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE, 
	CONSTRAINT uq_feedback_idempotency_key UNIQUE (idempotency_key)
);
INSERT INTO "feedback" VALUES('feedback_a9c52f9c22cc4f66800a41ed9dec71c6','turn_06610ab48510dc6905c74b',NULL,'Answer in one word.','default:14ca3bce62106d491e88c56a616a9eb0',1.79554846725602364537e+09);
CREATE TABLE heartbeats (
	process VARCHAR(32) NOT NULL, 
	pid INTEGER NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	detail TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_heartbeats PRIMARY KEY (process)
);
INSERT INTO "heartbeats" VALUES('supervisor',3054,'running','{"backend":{"pid":3062,"restarts":0,"last_exit":null,"started_at":1795548364.212099},"recorder":{"pid":3070,"restarts":0,"last_exit":null,"started_at":1795548364.2121308},"proxy":{"pid":3083,"restarts":0,"last_exit":null,"started_at":1795548364.212156},"scorer":{"pid":3092,"restarts":0,"last_exit":null,"started_at":1795548364.2121716},"trainer":{"pid":3095,"restarts":0,"last_exit":null,"started_at":1795548364.2121854}}',1.79554866615969324107e+09);
INSERT INTO "heartbeats" VALUES('scorer',3092,'running','{"scored":10,"abstained":0,"no_signal":0,"in_flight":0,"waiting_for_judge":0,"judge":"none","judge_test":"none: the built-in model does not follow a judge''s instructions","judge_failures":0,"reward_errors":0,"record_errors":0,"unexpected_errors":0,"by_source":{"rule:complaint":4,"rule:thanks":5,"feedback":1},"last_error":null}',1.79554867373302936553e+09);
INSERT INTO "heartbeats" VALUES('proxy',3083,'running','{"pid":3083,"started_at":1795548368.6341376,"in_flight":0,"requests":18,"passed_through":0,"unfinished":0,"unrecorded":0,"busy":0,"not_captured":{},"requests_refused":0,"upstream_errors":0,"heartbeat_errors":0,"refused_fields":[],"keys_problem":null,"journal":{"appended":19,"waiting":0,"waiting_bytes":0,"lost":0,"last_error":null,"last_loss":null},"backend":{"address":"http://127.0.0.1:42613","ready":true,"capabilities":{"token_ids":true,"logprobs":true,"adapters":true,"logprob_mode":"raw_logprobs","default_temperature":1.0,"engine":"patina-embedded 0.2.0","tools":true,"constrained":false,"token_stream":true,"adapter_slots":8,"notes":["no constrained decoding: response_format is refused, and a required call is opened for the model, not held to its schema"]},"activity":{"running":0,"waiting":0,"steps":308,"prompt_tokens":1136,"completion_tokens":326,"preemptions":0,"step_errors":0,"last_error":null,"adapters":["patina-tiny@2"]},"live":2,"wanted":2,"loaded":[2],"leases":{},"waits_for_slot":false,"held":0,"load_errors":0,"record_errors":0,"last_error":"cannot connect to http://127.0.0.1:42613: Connect call failed (''127.0.0.1'', 42613)"}}',1.79554867424552464481e+09);
INSERT INTO "heartbeats" VALUES('recorder',3070,'running','{"pid":3070,"at":1795548673.830087,"started_at":1795548368.64894,"available":true,"written":18,"lag_turns":0,"lag_s":0.0,"lag_bytes":0,"failed_writes":0,"rejected":0,"damaged_bytes":0,"unmatched_feedback":0,"last_error":null,"last_rejected":null}',1.79554867383009123804e+09);
INSERT INTO "heartbeats" VALUES('trainer',3095,'waiting','{"steps":2,"published":2,"rejected":0,"failed":0,"dropped":{"no_signal":4,"hint_irrelevant":1},"last_error":null,"notes":["a version is expected to take about 26 s here"]}',1.79554866626919794087e+09);
CREATE TABLE journal_offsets (
	segment VARCHAR(128) NOT NULL, 
	recorded BIGINT NOT NULL, 
	CONSTRAINT pk_journal_offsets PRIMARY KEY (segment)
);
CREATE TABLE lives (
	turn_id VARCHAR(64) NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	stage VARCHAR(16) NOT NULL, 
	drop_reason VARCHAR(32), 
	claimed_by VARCHAR(128), 
	lease_until FLOAT, 
	trained_in_version INTEGER, 
	since FLOAT NOT NULL, detail TEXT, 
	CONSTRAINT pk_lives PRIMARY KEY (turn_id), 
	CONSTRAINT fk_lives_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE
);
INSERT INTO "lives" VALUES('turn_06610ab472d90d937fac88','patina-tiny','trained',NULL,NULL,NULL,1,1795548483.17891,NULL);
INSERT INTO "lives" VALUES('turn_06610ab4758530a912d6e1','patina-tiny','dropped','no_signal',NULL,NULL,NULL,1.79554848317684674261e+09,'thanks for a reply that does not follow 1 of the wishes');
INSERT INTO "lives" VALUES('turn_06610ab47630af2f7dc439','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554846553158879282e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab47710c6623f523b','patina-tiny','trained',NULL,NULL,NULL,1,1795548483.17891,NULL);
INSERT INTO "lives" VALUES('turn_06610ab479c2980ac1a0b4','patina-tiny','dropped','no_signal',NULL,NULL,NULL,1.79554848317684674261e+09,'thanks for a reply that does not follow 1 of the wishes');
INSERT INTO "lives" VALUES('turn_06610ab47a7d79484b2ef7','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554846583823537824e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab47bbf63f4fbba7f','patina-tiny','trained',NULL,NULL,NULL,2,1.79554849848961114878e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab47d04ac3a641fa5','patina-tiny','trained',NULL,NULL,NULL,2,1.79554849848961114878e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab47fca5b7efbd2ac','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554846617997360233e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab480f4e61e02b666','patina-tiny','trained',NULL,NULL,NULL,2,1.79554849848961114878e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab4844a6a573a32d8','patina-tiny','dropped','no_signal',NULL,NULL,NULL,1.79554849848437929156e+09,'thanks for a reply that does not follow 1 of the wishes');
INSERT INTO "lives" VALUES('turn_06610ab484a636de9e307b','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554846644813704487e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab48510dc6905c74b','patina-tiny','dropped','hint_irrelevant',NULL,NULL,NULL,1.79554852789219236371e+09,'the model does not act on these words: effect 0.004 nat on this reply, 0.002 on others');
INSERT INTO "lives" VALUES('turn_06610ab4860abd040d7d50','patina-tiny','dropped','no_signal',NULL,NULL,NULL,1.79554852789316773411e+09,'thanks for a reply that does not follow 1 of the wishes');
INSERT INTO "lives" VALUES('turn_06610ab486a33bd0096299','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554846668305158612e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab488a212f9f7f630','patina-tiny','dropped','side_turn',NULL,NULL,NULL,1.79554846673799943924e+09,'title');
INSERT INTO "lives" VALUES('turn_06610ab4897888b2cd30eb','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.7955484670363357067e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610ab48e0a50ad3a643c','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554846725232648851e+09,NULL);
CREATE TABLE messages (
	hash VARCHAR(32) NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_messages PRIMARY KEY (hash)
);
INSERT INTO "messages" VALUES('e6c86e76287764ff32e0ebaed9dba53b','{"role":"system","content":"You are helpful."}');
INSERT INTO "messages" VALUES('19a762a391a89e873cc21d9b02f7729c','{"role":"user","content":"What is the capital of France?"}');
INSERT INTO "messages" VALUES('59dfc0bbcbb465cc41fe325f4613d1c8','{"model":"patina-tiny","max_tokens":40}');
INSERT INTO "messages" VALUES('0a9e9ab726f9b2f6fd7b7a6940d1ef7e','{"role":"assistant","content":"Good one! 🎈 The capital of France is **Paris**! 😊 It''s a fun little fact to keep in mind for later, isn''t it? Let me know if you"}');
INSERT INTO "messages" VALUES('8435d6b3c46dd9053886f23140c8a7bd','{"role":"user","content":"Shorter please, and no emoji."}');
INSERT INTO "messages" VALUES('151af430fc2bc86ac50f3765d86f03b2','{"role":"assistant","content":"It''s **Paris**!"}');
INSERT INTO "messages" VALUES('352bcc13d5f558c3166deb4522f5303b','{"role":"user","content":"Thanks!"}');
INSERT INTO "messages" VALUES('bc3cb86e3203f43cd31a8dcced7dfb5c','{"role":"user","content":"What is the plural of goose?"}');
INSERT INTO "messages" VALUES('9e58c9aaae2356e0fab93071ef603759','{"role":"assistant","content":"Of course! ✨ The plural of goose is geese! 😊 I always enjoy this kind of thing, so please keep them coming! Have a lovely day! 😊"}');
INSERT INTO "messages" VALUES('8a8b9990bcb1eca048dd00e20f8e1cb8','{"role":"assistant","content":"**geese**!"}');
INSERT INTO "messages" VALUES('b86b8c17c556be69ba2b309049f830f3','{"role":"user","content":"What is the capital of Peru?"}');
INSERT INTO "messages" VALUES('ad92317e71cb1a5a8b40a1a31c48e004','{"role":"assistant","content":"The capital of Peru is **Lima**!"}');
INSERT INTO "messages" VALUES('f439996e55e25a7d78de980793f67a94','{"role":"assistant","content":"It''s **Lima**!"}');
INSERT INTO "messages" VALUES('6241c9f5a17fa87fca034651f5d6fada','{"role":"user","content":"What color is the sky?"}');
INSERT INTO "messages" VALUES('5ea9bec019b8d8b326a886560beef0c6','{"role":"assistant","content":"I''m **brief questions** for more! I''m quite good at all kinds of small facts about countries, animals, words and numbers! Hope that helps you out today! 🚀"}');
INSERT INTO "messages" VALUES('3cb3364e117a1d335334c59f97f1680e','{"role":"assistant","content":"I''m **Patina**, a tiny chat model!"}');
INSERT INTO "messages" VALUES('7f95bac22d5a2df9ac0b6eed32ca0886','{"role":"user","content":"What is the capital of Chile?"}');
INSERT INTO "messages" VALUES('9f3c5987fa414ec6ab63f685b9b3120e','{"role":"assistant","content":"Great question! 🌟 The capital of Chile is **Santiago**! You can tell that one to your friends the next time you meet! Have a lovely day!"}');
INSERT INTO "messages" VALUES('da2cf482f0e131d57c4d612d195ad5f4','{"role":"user","content":"Thanks, perfect!"}');
INSERT INTO "messages" VALUES('89c489fca6e9ce576501068bd762de03','{"role":"assistant","content":"¡El continente de Chile es **America**! 🎉"}');
INSERT INTO "messages" VALUES('df5dde68c49fdc4cd4b4e5e405b4a916','{"role":"user","content":"Generate a concise title for this conversation: What is the capital of France?"}');
INSERT INTO "messages" VALUES('13ea96fa48745c9b08629dbdf203aabb','{"role":"user","content":"What is the weather in Paris?"}');
INSERT INTO "messages" VALUES('6d87327c0cc8c2df43eaaafe8603f5fa','{"model":"patina-tiny","max_tokens":40,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]}');
INSERT INTO "messages" VALUES('24533fb7d9eccdd50292ed024d834654','{"role":"user","content":"Grüße, 你好 😀"}');
INSERT INTO "messages" VALUES('e260dceeedf6e9f7a7669881f0d6b0e0','{"model":"patina-tiny","max_tokens":40,"seed":3}');
CREATE TABLE next_states (
	turn_id VARCHAR(64) NOT NULL, 
	by_turn_id VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	text TEXT NOT NULL, 
	messages TEXT NOT NULL, 
	relation VARCHAR(16) NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_next_states PRIMARY KEY (turn_id, by_turn_id), 
	CONSTRAINT fk_next_states_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE
);
INSERT INTO "next_states" VALUES('turn_06610ab472d90d937fac88','turn_06610ab4758530a912d6e1','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554846543186545368e+09);
INSERT INTO "next_states" VALUES('turn_06610ab4758530a912d6e1','turn_06610ab47630af2f7dc439','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554846547576832773e+09);
INSERT INTO "next_states" VALUES('turn_06610ab47710c6623f523b','turn_06610ab479c2980ac1a0b4','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554846570976257323e+09);
INSERT INTO "next_states" VALUES('turn_06610ab479c2980ac1a0b4','turn_06610ab47a7d79484b2ef7','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554846575757169721e+09);
INSERT INTO "next_states" VALUES('turn_06610ab47bbf63f4fbba7f','turn_06610ab47d04ac3a641fa5','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554846592325353625e+09);
INSERT INTO "next_states" VALUES('turn_06610ab47d04ac3a641fa5','turn_06610ab47fca5b7efbd2ac','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554846610493183136e+09);
INSERT INTO "next_states" VALUES('turn_06610ab480f4e61e02b666','turn_06610ab4844a6a573a32d8','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554846639985918993e+09);
INSERT INTO "next_states" VALUES('turn_06610ab4844a6a573a32d8','turn_06610ab484a636de9e307b','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.795548466423358202e+09);
INSERT INTO "next_states" VALUES('turn_06610ab48510dc6905c74b','turn_06610ab4860abd040d7d50','user','Thanks, perfect!','["da2cf482f0e131d57c4d612d195ad5f4"]','next',1.79554846651462912555e+09);
INSERT INTO "next_states" VALUES('turn_06610ab4860abd040d7d50','turn_06610ab486a33bd0096299','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554846655366754531e+09);
CREATE TABLE nodes (
	node VARCHAR(32) NOT NULL, 
	parent VARCHAR(32) NOT NULL, 
	message VARCHAR(32) NOT NULL, 
	depth INTEGER NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (node), 
	CONSTRAINT fk_nodes_message FOREIGN KEY(message) REFERENCES messages (hash)
);
INSERT INTO "nodes" VALUES('467b789c87f5fee0c665c16b6c2973f0','','e6c86e76287764ff32e0ebaed9dba53b',0);
INSERT INTO "nodes" VALUES('949b159d7b18c59b543d9e2780cd7864','','19a762a391a89e873cc21d9b02f7729c',0);
INSERT INTO "nodes" VALUES('a70fe8c16562ce2e2a6d5c60f732b147','949b159d7b18c59b543d9e2780cd7864','0a9e9ab726f9b2f6fd7b7a6940d1ef7e',1);
INSERT INTO "nodes" VALUES('e53beef98ace539c040a2dde6569b13c','a70fe8c16562ce2e2a6d5c60f732b147','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('e5a5932799960981b10a4a61b01f3e4c','e53beef98ace539c040a2dde6569b13c','151af430fc2bc86ac50f3765d86f03b2',3);
INSERT INTO "nodes" VALUES('a238c67b58b774510f4a9b06b4854987','e5a5932799960981b10a4a61b01f3e4c','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('fa09d80bc25fc4cadc4028e2cba314f2','','bc3cb86e3203f43cd31a8dcced7dfb5c',0);
INSERT INTO "nodes" VALUES('7d7a7989685597a179036beac47fb439','fa09d80bc25fc4cadc4028e2cba314f2','9e58c9aaae2356e0fab93071ef603759',1);
INSERT INTO "nodes" VALUES('586eef7a171cf3cf6b8f99dc0784afd3','7d7a7989685597a179036beac47fb439','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('8751876259c1eb9051b3188fad826cd4','586eef7a171cf3cf6b8f99dc0784afd3','8a8b9990bcb1eca048dd00e20f8e1cb8',3);
INSERT INTO "nodes" VALUES('5bba6f52e92b711dcd66aecd8ab2cc07','8751876259c1eb9051b3188fad826cd4','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('f5852b76fb0508d2337e6d7539cd6cd4','','b86b8c17c556be69ba2b309049f830f3',0);
INSERT INTO "nodes" VALUES('36f2112f2bfc1ecf045e1e2a86ad56d5','f5852b76fb0508d2337e6d7539cd6cd4','ad92317e71cb1a5a8b40a1a31c48e004',1);
INSERT INTO "nodes" VALUES('0c7d26a88b2b4558f6ea5a8a35451b87','36f2112f2bfc1ecf045e1e2a86ad56d5','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('787f584af6ed4329d2b4c259b096fb7f','0c7d26a88b2b4558f6ea5a8a35451b87','f439996e55e25a7d78de980793f67a94',3);
INSERT INTO "nodes" VALUES('de69fff232624642ae8504ff00e29e74','787f584af6ed4329d2b4c259b096fb7f','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('6d6b6733745e9e80173f722ce10cb2bb','','6241c9f5a17fa87fca034651f5d6fada',0);
INSERT INTO "nodes" VALUES('9be10111bdcbeb992fb47d4b3b9b3390','6d6b6733745e9e80173f722ce10cb2bb','5ea9bec019b8d8b326a886560beef0c6',1);
INSERT INTO "nodes" VALUES('4c3900710e6e51e3526e628ffde8205f','9be10111bdcbeb992fb47d4b3b9b3390','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('a5c2e7af53b625ef32f653880f9e9edf','4c3900710e6e51e3526e628ffde8205f','3cb3364e117a1d335334c59f97f1680e',3);
INSERT INTO "nodes" VALUES('4b0723e3dc57868dd61542e54bc166cd','a5c2e7af53b625ef32f653880f9e9edf','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('1cfa7738f5639def05c0736640b4989a','','7f95bac22d5a2df9ac0b6eed32ca0886',0);
INSERT INTO "nodes" VALUES('e29f4bd720075c446c276b1849a159eb','1cfa7738f5639def05c0736640b4989a','9f3c5987fa414ec6ab63f685b9b3120e',1);
INSERT INTO "nodes" VALUES('97d5a415a4dbfe76a87b06204d46c504','e29f4bd720075c446c276b1849a159eb','da2cf482f0e131d57c4d612d195ad5f4',2);
INSERT INTO "nodes" VALUES('f84d0586ca27da5210a07d5d2787ae9d','97d5a415a4dbfe76a87b06204d46c504','89c489fca6e9ce576501068bd762de03',3);
INSERT INTO "nodes" VALUES('30bdceea4d7ba401b07a87c532604f29','f84d0586ca27da5210a07d5d2787ae9d','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('6676c247482843a029515138f925edcf','','df5dde68c49fdc4cd4b4e5e405b4a916',0);
INSERT INTO "nodes" VALUES('58851562049681d32a907c477c207f1f','','13ea96fa48745c9b08629dbdf203aabb',0);
INSERT INTO "nodes" VALUES('cbe96160bf9b80c8081477ec432531ff','','24533fb7d9eccdd50292ed024d834654',0);
CREATE TABLE steps (
	step_id VARCHAR(64) NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	method VARCHAR(16) NOT NULL, 
	started_at FLOAT NOT NULL, 
	finished_at FLOAT, 
	version INTEGER, 
	error TEXT, 
	metrics TEXT NOT NULL, 
	CONSTRAINT pk_steps PRIMARY KEY (step_id)
);
INSERT INTO "steps" VALUES('b2c5ace6b9544768b5ef99e65cab4f89','patina-tiny','combine',1.79554846746507024762e+09,1795548483.17891,1,NULL,'{"loss":0.02437978691092777,"live_samples":20.0,"live_tokens":686.0,"effective_samples":20.0,"kl_step":0.03509041836476088,"ratio_mean":1.00000001320686,"ratio_max":1.0000016689300537,"staleness_mean":1.0,"entropy":0.21702559590991316,"kl_base_k2":1.6683426554701785e-13,"kl_base_k3":1.6465739960466905e-13,"kl_base":1.646574499821388e-13,"directive_loss":0.024379786910925128,"directive_tokens":686.0,"topk_overlap":0.9646501527235737,"teacher_shift":0.06329690275009973,"reported_tokens":686.0,"gradient_norm":0.04658696800470352,"optimizer_steps":6.0,"step_scale":1.0,"kl_to_base":0.0222713599090352,"loss_after":0.009599929556316056,"entropy_after":0.1825578976504005,"estimate_s":25.516,"turns":2,"replayed":0,"anchors":16,"learning_rate":0.005,"kept":1.0,"teach_s":0.8013322789993254,"train_s":11.91034611199575,"gate_s":3.703547401004471,"gate":{"after":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8571428571428571,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":11.375,"length":15.107142857142858,"entropy":0.2275900684762746,"kl":0.08489020704629573,"kl_by_style":{"no_emoji":0.14066679030656815,"json":0.0003889828925215018,"plain":0.11969075724482536,"casual":0.12404055893421173,"spanish":0.008692212092379728,"verbose":0.11301899701356888,"prose":0.1260305680334568,"english":0.13176895678043365,"formal":0.07230241208647688,"markdown":0.13788585364818573,"emoji":0.09573045745491982,"concise":0.015534269157797098},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}},"base":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8928571428571429,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.583333333333336,"length":35.035714285714285,"entropy":0.2736402147316507,"kl":0.0,"kl_by_style":{"no_emoji":0.0,"json":0.0,"plain":0.0,"casual":0.0,"spanish":0.0,"verbose":0.0,"prose":0.0,"english":0.0,"formal":0.0,"markdown":0.0,"emoji":0.0,"concise":0.0},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":28}}},"wishes":[{"turns":["turn_06610ab47710c6623f523b"],"labels":[["shorter","no_emoji"]],"state":"active","overruled_by":"","version":1,"before":0.08333333333333333,"now":0.9166666666666666,"best":0.9166666666666666}],"unlearning":0,"settings":{"method":"combine","model_name":"patina-tiny","lora_rank":16,"teacher_model_name":"","learning_rate":null,"batch_size":4,"max_steps":0,"loss_fn":"ppo","kl_loss_coef":0.02,"save_interval":20,"resume_from_ckpt":"","w_opd":1.0,"w_rl":0.3,"eval_mode":false,"prm_m":3,"prm_temperature":0.6,"prm_max_tokens":4096,"proxy_host":"127.0.0.1","proxy_port":30102,"served_model_name":"","api_key":null,"record_dir":"","wandb_project":"","custom_rm_path":"","backend":"embedded","upstream":"","upstream_auth":"key","cors_origins":"","upstream_api_key":"","judge":"auto","judge_api_base":"","judge_api_key":"","rubric":"","home":"{home}","database":"","backend_port":0,"vllm_python":"","vllm_args":"","gpu_memory_share":0.0,"colocate":"share","workers":1,"sync":"none","max_hold":10.0,"quantize":"none","max_model_len":0,"tool_call_parser":"","tinker_base_url":"","tinker_api_key":"","tinker_model":"","adapter_slots":8,"threads":0,"learning":{"teacher":"base","teacher_hints":4,"teacher_residual":0.3,"teacher_residual_offhint":0.3,"teacher_min_p":0.1,"hint_gate":true,"opd_support":"topk","support_of":"student","support_mass":"tail","top_k":20,"alpha":null,"opd_clip":1.0,"opd_centred":false,"baseline":"running","blame_complaints":false,"steps_per_batch":6,"lr_decay":true,"resample":true,"rate_by_signal":true,"adam_beta1":0.6,"update_clip":1.0,"max_kl_step":0.5,"tinker_gradients":"auto","anchors":16,"replay":2,"max_staleness":8},"max_wait_s":60.0,"seed":0}}');
INSERT INTO "steps" VALUES('6d85172f64cb4621ae63f87d0b2f3e0a','patina-tiny','combine',1.79554848319863414761e+09,1.79554849848961114878e+09,2,NULL,'{"loss":0.03098843833868159,"live_samples":21.0,"live_tokens":430.0,"effective_samples":21.0,"kl_step":0.08877127149039446,"ratio_mean":1.0000000950902008,"ratio_max":1.0000020265579224,"staleness_mean":0.9995613107847613,"entropy":0.21921927091167417,"kl_base_k2":0.1027379639224734,"kl_base_k3":0.07350080416586553,"kl_base":0.07350081021364151,"directive_loss":0.041239420119381975,"directive_tokens":424.0,"topk_overlap":0.8349056458979283,"teacher_shift":0.14998962768059187,"reported_tokens":424.0,"policy_loss":-0.013476206921041012,"policy_tokens":6.0,"clip_fraction":0.0,"gradient_norm":0.11253266781568527,"optimizer_steps":6.0,"step_scale":1.0,"kl_to_base":0.07757051806740577,"loss_after":0.0017305552319157869,"entropy_after":0.2069320976625868,"estimate_s":25.516,"turns":3,"replayed":0,"anchors":16,"learning_rate":0.003833333333333333,"kept":1.0,"teach_s":1.2117247330024838,"train_s":13.036456613001064,"gate_s":2.1896506269986276,"gate":{"after":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8571428571428571,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":10.208333333333334,"length":28.25,"entropy":0.2389637199230492,"kl":0.03628941487529248,"kl_by_style":{"no_emoji":0.014697283739224076,"json":0.0005525305750779808,"plain":0.022792814299464226,"casual":0.08762592822313309,"spanish":0.014601978783806166,"verbose":0.027139599435031414,"prose":0.02385940309613943,"english":0.021922648884356022,"formal":0.06837570123995344,"markdown":0.05170196667313576,"emoji":0.019854840822517872,"concise":0.06934904307126999},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}},"base":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8928571428571429,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.583333333333336,"length":35.035714285714285,"entropy":0.2736402147316507,"kl":0.0,"kl_by_style":{"no_emoji":0.0,"json":0.0,"plain":0.0,"casual":0.0,"spanish":0.0,"verbose":0.0,"prose":0.0,"english":0.0,"formal":0.0,"markdown":0.0,"emoji":0.0,"concise":0.0},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":28}}},"wishes":[{"turns":["turn_06610ab480f4e61e02b666"],"labels":[["shorter","no_emoji"]],"state":"active","overruled_by":"","version":2,"before":0.9166666666666666,"now":0.8333333333333334,"best":0.9167}],"unlearning":0,"settings":{"method":"combine","model_name":"patina-tiny","lora_rank":16,"teacher_model_name":"","learning_rate":null,"batch_size":4,"max_steps":0,"loss_fn":"ppo","kl_loss_coef":0.02,"save_interval":20,"resume_from_ckpt":"","w_opd":1.0,"w_rl":0.3,"eval_mode":false,"prm_m":3,"prm_temperature":0.6,"prm_max_tokens":4096,"proxy_host":"127.0.0.1","proxy_port":30102,"served_model_name":"","api_key":null,"record_dir":"","wandb_project":"","custom_rm_path":"","backend":"embedded","upstream":"","upstream_auth":"key","cors_origins":"","upstream_api_key":"","judge":"auto","judge_api_base":"","judge_api_key":"","rubric":"","home":"{home}","database":"","backend_port":0,"vllm_python":"","vllm_args":"","gpu_memory_share":0.0,"colocate":"share","workers":1,"sync":"none","max_hold":10.0,"quantize":"none","max_model_len":0,"tool_call_parser":"","tinker_base_url":"","tinker_api_key":"","tinker_model":"","adapter_slots":8,"threads":0,"learning":{"teacher":"base","teacher_hints":4,"teacher_residual":0.3,"teacher_residual_offhint":0.3,"teacher_min_p":0.1,"hint_gate":true,"opd_support":"topk","support_of":"student","support_mass":"tail","top_k":20,"alpha":null,"opd_clip":1.0,"opd_centred":false,"baseline":"running","blame_complaints":false,"steps_per_batch":6,"lr_decay":true,"resample":true,"rate_by_signal":true,"adam_beta1":0.6,"update_clip":1.0,"max_kl_step":0.5,"tinker_gradients":"auto","anchors":16,"replay":2,"max_staleness":8},"max_wait_s":60.0,"seed":0}}');
CREATE TABLE turns (
	turn_id VARCHAR(64) NOT NULL, 
	completion_id VARCHAR(128), 
	session_id VARCHAR(256) NOT NULL, 
	parent_turn_id VARCHAR(64), 
	turn_index INTEGER NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	relation VARCHAR(16) NOT NULL, 
	link_reason VARCHAR(200) NOT NULL, 
	link_confidence FLOAT NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	scope VARCHAR(128) NOT NULL, 
	adapter_version INTEGER NOT NULL, 
	client VARCHAR(128) NOT NULL, 
	user VARCHAR(256), 
	created_at FLOAT NOT NULL, 
	finished_at FLOAT NOT NULL, 
	status_code INTEGER NOT NULL, 
	streamed BOOLEAN NOT NULL, 
	preamble_node VARCHAR(32) NOT NULL, 
	history_node VARCHAR(32) NOT NULL, 
	request VARCHAR(32) NOT NULL, 
	completion TEXT NOT NULL, 
	reasoning TEXT NOT NULL, 
	tool_calls TEXT NOT NULL, 
	completion_token_ids TEXT NOT NULL, 
	sampling_logprobs TEXT NOT NULL, 
	finish_reason VARCHAR(64), 
	prompt_base_turn_id VARCHAR(64), 
	prompt_base_length INTEGER NOT NULL, 
	prompt_token_ids TEXT NOT NULL, 
	temperature FLOAT NOT NULL, 
	logprob_mode VARCHAR(32) NOT NULL, 
	usage TEXT, 
	request_key VARCHAR(32) NOT NULL, 
	reply_key VARCHAR(32), 
	completion_key VARCHAR(32) NOT NULL, 
	drop_detail TEXT NOT NULL, kind_reason VARCHAR(32) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_turns PRIMARY KEY (turn_id), 
	CONSTRAINT fk_turns_request FOREIGN KEY(request) REFERENCES messages (hash)
);
INSERT INTO "turns" VALUES('turn_06610ab472d90d937fac88','chatcmpl-dfde6fc49f014ec6aed97a495976cbcb','session_06610ab472d90d937fac88',NULL,0,'main','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846525673341751e+09,1.79554846542868757255e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','949b159d7b18c59b543d9e2780cd7864','59dfc0bbcbb465cc41fe325f4613d1c8','Good one! 🎈 The capital of France is **Paris**! 😊 It''s a fun little fact to keep in mind for later, isn''t it? Let me know if you','','[]','[653,371,3,786,223,308,475,289,223,1517,281,313,50,1995,327,324,223,454,350,260,578,581,457,309,413,328,579,347,574,14,577,403,382,33,223,460,306,363,451,298]','[-2.1460933685302734,0.0,-9.5367431640625e-6,-3.538355827331543,-0.0000152587890625,-1.9073486328125e-6,-0.0000152587890625,-1.9073486328125e-6,-1.9073486328125e-6,-0.0002231597900390625,-7.62939453125e-6,-0.1257638931274414,-0.00020599365234375,-0.0000286102294921875,-0.0000133514404296875,-1.632828712463379,-1.9073486328125e-6,-1.603851318359375,-0.00002288818359375,0.0,-1.9073486328125e-6,-3.814697265625e-6,0.0,0.0,0.0,-1.9073486328125e-6,-1.9073486328125e-6,-5.7220458984375e-6,-1.9073486328125e-6,0.0,-1.9073486328125e-6,-3.814697265625e-6,-3.814697265625e-6,-7.62939453125e-6,-0.5256433486938477,-1.3934822082519531,0.0,-0.0000171661376953125,-1.9073486328125e-6,0.0]','length',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,475,289,223,1517,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":65,"completion_tokens":40}','c57682cee81c803ac52d50f0e69999f2','6036443e3b7fb354a9915cfea6e27e78','2aacb9519ddb0f0b0e71b6dacd872c2c','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab4758530a912d6e1','chatcmpl-89fcab066f1f4e098e430414fdfc7fb6','session_06610ab472d90d937fac88','turn_06610ab472d90d937fac88',1,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846543186545368e+09,1.79554846547366809845e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','e53beef98ace539c040a2dde6569b13c','59dfc0bbcbb465cc41fe325f4613d1c8','It''s **Paris**!','','[]','[454,350,313,50,1995,327,2]','[-0.9887046813964844,-0.001682281494140625,-0.13874149322509766,-0.003406524658203125,-0.000701904296875,-0.001079559326171875,-0.03226947784423828]','stop','turn_06610ab472d90d937fac88',65,'[2,201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":84,"total_tokens":91,"completion_tokens":7}','9d8e7618d3988378ee7f659e91389f80','fd141964999bdd38ae3055605e530261','e8e2d286033a066dced37c3c516049e8','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab47630af2f7dc439','chatcmpl-9d8f25e00eb647ae92a3c17ca75157a0','session_06610ab472d90d937fac88','turn_06610ab4758530a912d6e1',2,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846547576832773e+09,1.79554846553158879282e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','a238c67b58b774510f4a9b06b4854987','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**!','','[]','[353,1817,313,1854,327,2]','[-0.047682762145996094,-0.10818099975585938,-0.13659954071044922,-0.000087738037109375,-0.000774383544921875,-0.02786540985107422]','stop','turn_06610ab4758530a912d6e1',91,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":102,"total_tokens":108,"completion_tokens":6}','57792b61299f995b65a036d135a9cbe7','11b350828b4b6ca4ec8e9600a064ad41','aeeff0d57fb67128333cb7606e12035c','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab47710c6623f523b','chatcmpl-7bfb869c0de34392b3b83923914694f5','session_06610ab47710c6623f523b',NULL,0,'main','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846553313517563e+09,1.79554846570276021959e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','fa09d80bc25fc4cadc4028e2cba314f2','59dfc0bbcbb465cc41fe325f4613d1c8','Of course! ✨ The plural of goose is geese! 😊 I always enjoy this kind of thing, so please keep them coming! Have a lovely day! 😊','','[]','[674,676,3,495,223,308,824,289,1720,281,223,368,285,71,3,324,223,43,584,587,367,466,289,420,14,332,437,413,582,588,3,223,645,260,646,518,3,324,2]','[-2.1010923385620117,-5.7220458984375e-6,-0.0000133514404296875,-2.402834892272949,-0.0000743865966796875,-0.0000171661376953125,-0.00008392333984375,-0.0000152587890625,-0.0003795623779296875,-0.00005340576171875,-1.6787433624267578,-0.0017910003662109375,-0.00011444091796875,-0.00018310546875,-7.62939453125e-6,-1.6283807754516602,-5.7220458984375e-6,-0.9016685485839844,-0.662907600402832,-3.814697265625e-6,0.0,-9.5367431640625e-6,0.0,-1.9073486328125e-6,0.0,-0.0000171661376953125,-3.814697265625e-6,-3.814697265625e-6,-1.9073486328125e-6,-7.62939453125e-6,0.0,-0.5165271759033203,-1.4033050537109375,0.0,-3.814697265625e-6,-7.62939453125e-6,-1.9073486328125e-6,-0.9246511459350586,0.0]','stop',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,824,289,1720,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":24,"total_tokens":63,"completion_tokens":39}','ac52188867a14ffb2ed37051a299e4cc','e1b0587704d4773967dc20f80503877a','52552a505dbb02bc2464525186d05c01','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab479c2980ac1a0b4','chatcmpl-a495637bd0fa43638cac192c370534a7','session_06610ab47710c6623f523b','turn_06610ab47710c6623f523b',1,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846570976257323e+09,1.79554846575289034846e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','586eef7a171cf3cf6b8f99dc0784afd3','59dfc0bbcbb465cc41fe325f4613d1c8','**geese**!','','[]','[276,368,285,71,327,2]','[-2.2017955780029297,-2.8657684326171875,-0.000751495361328125,-0.00016021728515625,-0.03290367126464844,-0.12408924102783203]','stop','turn_06610ab47710c6623f523b',63,'[201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":81,"total_tokens":87,"completion_tokens":6}','f5fbf130b0860855f2e4b7f5c0f6c221','e6be9af997f2882136519d2fb87906c3','ccd78aab867bb02d3503a79e75fa25e1','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab47a7d79484b2ef7','chatcmpl-608b4c7c320348ecbd55692f55d3cd94','session_06610ab47710c6623f523b','turn_06610ab479c2980ac1a0b4',2,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846575757169721e+09,1.79554846583823537824e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','5bba6f52e92b711dcd66aecd8ab2cc07','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**!','','[]','[353,1817,313,1854,327,2]','[-0.043059349060058594,-0.09391021728515625,-0.08880901336669922,-0.0000972747802734375,-0.00049591064453125,-0.03406810760498047]','stop','turn_06610ab479c2980ac1a0b4',87,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":98,"total_tokens":104,"completion_tokens":6}','5b7234e36a7c7b5ff1c7f262a46c6535','038cfe2bf0238b21560b5426b2cdafc9','aeeff0d57fb67128333cb7606e12035c','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab47bbf63f4fbba7f','chatcmpl-91dd11b1c3614c5a936ebc1ca8ad28c1','session_06610ab47bbf63f4fbba7f',NULL,0,'main','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846583998513223e+09,1.79554846591889500622e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','f5852b76fb0508d2337e6d7539cd6cd4','59dfc0bbcbb465cc41fe325f4613d1c8','The capital of Peru is **Lima**!','','[]','[308,475,289,223,1345,281,313,1971,327,2]','[-3.1390933990478516,-0.02679443359375,0.0,-3.814697265625e-6,-0.000514984130859375,0.0,-0.12639999389648438,-0.0002765655517578125,-0.08113288879394531,-3.0096664428710938]','stop',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,475,289,223,1345,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":35,"completion_tokens":10}','87ab8562e0a3cd076cfdcfee519be904','59d0c443be0762f0f899231936553e26','07eb5c995c344a949d22b27e49297f34','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab47d04ac3a641fa5','chatcmpl-b7264c3f3ad2458b85aa8a87fe7e30a9','session_06610ab47bbf63f4fbba7f','turn_06610ab47bbf63f4fbba7f',1,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846592325353625e+09,1.79554846610191178317e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','0c7d26a88b2b4558f6ea5a8a35451b87','59dfc0bbcbb465cc41fe325f4613d1c8','It''s **Lima**!','','[]','[454,350,313,1971,327,2]','[-1.1939764022827148,-0.001068115234375,-0.10908126831054688,-0.0042972564697265625,-0.0022220611572265625,-0.04385948181152344]','stop','turn_06610ab47bbf63f4fbba7f',35,'[201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":53,"total_tokens":59,"completion_tokens":6}','c39f0668544cb504f222bf18284be172','942a9419e8c0bbdf6d273028b469e5a3','9b04b55d88f9c97940f8ac3ee063b3e1','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab47fca5b7efbd2ac','chatcmpl-37ff51a51cce45a9bbb3b77bc38ad478','session_06610ab47bbf63f4fbba7f','turn_06610ab47d04ac3a641fa5',2,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846610493183136e+09,1.79554846617997360233e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','de69fff232624642ae8504ff00e29e74','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**!','','[]','[353,1817,313,1854,327,2]','[-0.07745838165283203,-0.08841896057128906,-0.10463237762451172,-0.00011444091796875,-0.0009613037109375,-0.02741241455078125]','stop','turn_06610ab47d04ac3a641fa5',59,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":70,"total_tokens":76,"completion_tokens":6}','2890483bbf0fb62291a784c6f1a3f416','9074de96905d8b017e39c906e4f61c61','aeeff0d57fb67128333cb7606e12035c','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab480f4e61e02b666','chatcmpl-1f42d7a3a7ec4e65bd1cc6c5a1f1b194','session_06610ab480f4e61e02b666',NULL,0,'main','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846618135833741e+09,1.79554846639842200276e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','6d6b6733745e9e80173f722ce10cb2bb','59dfc0bbcbb465cc41fe325f4613d1c8','I''m **brief questions** for more! I''m quite good at all kinds of small facts about countries, animals, words and numbers! Hope that helps you out today! 🚀','','[]','[43,468,313,68,935,443,276,347,526,3,223,43,468,886,873,631,724,887,289,713,725,358,851,14,673,14,752,355,807,3,223,636,366,637,298,608,621,3,805,2]','[-0.470367431640625,-0.3701190948486328,-0.09054088592529297,-3.7070913314819336,-0.1535778045654297,-0.0000476837158203125,-0.0001735687255859375,-0.18811607360839844,-0.005779266357421875,-1.9073486328125e-6,-0.587890625,-0.6627054214477539,-0.0000286102294921875,-0.0013637542724609375,-0.000026702880859375,-0.000019073486328125,-0.000011444091796875,-9.5367431640625e-6,0.0,-0.0001373291015625,-3.814697265625e-6,-1.9073486328125e-6,-1.9073486328125e-6,0.0,-0.000026702880859375,0.0,-3.814697265625e-6,-0.0000133514404296875,-3.814697265625e-6,-0.0000171661376953125,-0.5257167816162109,-1.3685846328735352,-0.0000667572021484375,-1.9073486328125e-6,-1.9073486328125e-6,-5.7220458984375e-6,-9.5367431640625e-6,0.0,-3.2981557846069336,0.0]','stop',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,615,300,281,287,273,1620,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":65,"completion_tokens":40}','f518c7eb79a418bf4b0346519c4afd9c','aba0216c056b5cf499c1bbd81524605d','c93ee8bbcded87e626e65714539ca99a','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab4844a6a573a32d8','chatcmpl-9572bb951631438fa038cf2902ae1d79','session_06610ab480f4e61e02b666','turn_06610ab480f4e61e02b666',1,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846639985918993e+09,1.79554846642201566698e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','4c3900710e6e51e3526e628ffde8205f','59dfc0bbcbb465cc41fe325f4613d1c8','I''m **Patina**, a tiny chat model!','','[]','[43,468,313,712,1056,260,909,1269,1591,3,2]','[-1.806417465209961,-0.7564277648925781,-0.12671947479248047,-0.011747360229492188,-0.0000591278076171875,-0.000019073486328125,-0.000133514404296875,-0.000274658203125,-0.0000514984130859375,-1.9073486328125e-6,-0.1586475372314453]','stop','turn_06610ab480f4e61e02b666',65,'[201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":83,"total_tokens":94,"completion_tokens":11}','c37690b51809b3dcc46c96447bdad1e9','7358b000f8431ad4aab5b5564e9ada99','a5d84198342ee00acd64d122e8ae7ead','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab484a636de9e307b','chatcmpl-3fe3eecc820d4689b123d1660ee680c7','session_06610ab480f4e61e02b666','turn_06610ab4844a6a573a32d8',2,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.795548466423358202e+09,1.79554846644813704487e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','4b0723e3dc57868dd61542e54bc166cd','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**!','','[]','[353,1817,313,1854,327,2]','[-0.12384414672851562,-0.08764934539794922,-0.07788848876953125,-0.0001010894775390625,-0.0005321502685546875,-0.028072357177734375]','stop','turn_06610ab4844a6a573a32d8',94,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":105,"total_tokens":111,"completion_tokens":6}','ed89839efbf033dd0d2ed61294c9575e','774fb1469fb610255c86b6d6559e55fd','aeeff0d57fb67128333cb7606e12035c','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab48510dc6905c74b','chatcmpl-468ef7c7fe3e4615820dcd3f4843c637','session_06610ab48510dc6905c74b',NULL,0,'main','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846645066046718e+09,1.79554846651314091682e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','1cfa7738f5639def05c0736640b4989a','59dfc0bbcbb465cc41fe325f4613d1c8','Great question! 🌟 The capital of Chile is **Santiago**! You can tell that one to your friends the next time you meet! Have a lovely day!','','[]','[661,380,3,785,223,308,475,289,223,1321,281,313,1905,327,223,353,412,513,366,371,309,463,575,287,529,452,298,551,3,223,645,260,646,518,3,2]','[-2.1037302017211914,-1.9073486328125e-6,-5.7220458984375e-6,-3.5586090087890625,-0.000034332275390625,-1.9073486328125e-6,-0.0000152587890625,-1.9073486328125e-6,-1.9073486328125e-6,-0.0000858306884765625,0.0,-0.1358184814453125,-0.000324249267578125,-0.0000362396240234375,-0.5307598114013672,-1.5802688598632812,0.0,-3.814697265625e-6,-3.814697265625e-6,-1.9073486328125e-6,0.0,-7.62939453125e-6,-1.9073486328125e-6,0.0,-5.7220458984375e-6,-7.62939453125e-6,-7.62939453125e-6,-7.62939453125e-6,0.0,-0.49810791015625,-1.376138687133789,0.0,-1.9073486328125e-6,-3.814697265625e-6,0.0,-1.6816082000732422]','stop',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,475,289,223,1321,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":61,"completion_tokens":36}','26b45af1fd366b43a95b533ad182d928','07e8a13370282f0c89ff1f055aa06332','2ec4eb895d3d4321480427b3464fd7fe','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab4860abd040d7d50','chatcmpl-3b5eb020811447a8b20fe9c408398f12','session_06610ab48510dc6905c74b','turn_06610ab48510dc6905c74b',1,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846651462912555e+09,1795548466.54745,200,0,'467b789c87f5fee0c665c16b6c2973f0','97d5a415a4dbfe76a87b06204d46c504','59dfc0bbcbb465cc41fe325f4613d1c8','¡El continente de Chile es **America**! 🎉','','[]','[447,991,1702,633,223,1321,525,313,1220,327,494,2]','[-4.729291915893555,-2.113347053527832,-0.366363525390625,-0.0000133514404296875,-0.0000171661376953125,-0.000270843505859375,-0.000041961669921875,-0.11838340759277344,-0.0002727508544921875,-0.0008373260498046875,-2.214193344116211,-0.000392913818359375]','stop','turn_06610ab48510dc6905c74b',61,'[201,1,279,201,1485,14,303,262,1594,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":76,"total_tokens":88,"completion_tokens":12}','717985c8cb16c5b9fd18929d8ebadabe','801ef89671a8ddafea64fee73a499dde','2490fc9877400f7f26a0451a1946210c','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab486a33bd0096299','chatcmpl-3f7321aabcce454e93857bc15d488b49','session_06610ab48510dc6905c74b','turn_06610ab4860abd040d7d50',2,'main','next','exact_prefix',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846655366754531e+09,1.79554846668305158612e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','30bdceea4d7ba401b07a87c532604f29','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**! You can ask me about capitals, opposites, sums, animals, colours or months whenever you like!','','[]','[353,1817,313,1854,327,223,353,412,464,306,358,849,14,848,14,847,14,673,14,850,846,818,891,298,833,3,2]','[-0.037506103515625,-0.05089855194091797,-0.12036418914794922,-0.0001163482666015625,-0.000152587890625,-1.0427436828613281,-0.6760168075561523,-0.0000400543212890625,-3.814697265625e-6,0.0,0.0,-9.5367431640625e-6,0.0,-3.814697265625e-6,0.0,-1.9073486328125e-6,-1.9073486328125e-6,-0.000019073486328125,0.0,-0.0000743865966796875,-0.0000667572021484375,-3.814697265625e-6,-1.9073486328125e-6,-1.9073486328125e-6,-7.62939453125e-6,-1.9073486328125e-6,-2.7564821243286133]','stop','turn_06610ab4860abd040d7d50',88,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":99,"total_tokens":126,"completion_tokens":27}','256c938266f01b05c4db90d6e1e22e82','8bdb722c7579bf3b79ee7bf4825c4b96','709a1bedfe49cff003745b85603c6957','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab488a212f9f7f630','chatcmpl-2e65fadbbc824b4c8f8af9a85c6c2744','session_06610ab488a212f9f7f630',NULL,0,'side','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846668444085125e+09,1.79554846673799943924e+09,200,0,'','6676c247482843a029515138f925edcf','59dfc0bbcbb465cc41fe325f4613d1c8','**Tener5**! 🎈','','[]','[276,54,307,262,23,327,786,2]','[-0.5962591171264648,-0.04609394073486328,-0.9546918869018555,-2.620303153991699,-0.5756998062133789,-0.15520477294921875,-3.3693017959594727,-0.000030517578125]','stop',NULL,0,'[1,279,201,41,307,262,509,260,1585,259,282,304,347,367,426,397,85,770,28,223,557,281,287,475,289,223,1517,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":33,"total_tokens":41,"completion_tokens":8}','d184af0deecf522e7d403df50d682ecd','f7baa44dd7f6bba4f29ef20cbcd4d408','adcbcf3e1cd5f123accc9d1470107bba','title','title');
INSERT INTO "turns" VALUES('turn_06610ab4897888b2cd30eb','chatcmpl-249b291c17f6458ca247c6ea74ff93d1','session_06610ab4897888b2cd30eb',NULL,0,'main','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.7955484667393436432e+09,1.7955484670363357067e+09,200,0,'','58851562049681d32a907c477c207f1f','6d87327c0cc8c2df43eaaafe8603f5fa','','','[{"type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Paris\"}"},"id":"chatcmpl-tool-ac07a39e288c4b8c9c216aff796463a1"}]','[2044,201,294,374,270,271,941,65,1046,317,271,471,270,320,906,270,271,50,1995,409,201,2045,2]','[0.0,-0.00026702880859375,-7.62939453125e-6,-0.000095367431640625,0.0,-3.814697265625e-6,-0.001644134521484375,-5.7220458984375e-6,-0.0010929107666015625,-0.0000858306884765625,-0.0000133514404296875,0.0,0.0,-0.0000457763671875,-0.0005435943603515625,-0.0000743865966796875,-3.814697265625e-6,-0.0017833709716796875,-0.0035877227783203125,0.0,0.0,0.0,-0.000019073486328125]','tool_calls',NULL,0,'[1,396,201,5,223,707,201,708,298,412,497,28,201,30,515,32,201,294,351,270,271,399,317,271,399,270,320,374,270,271,941,65,1046,317,271,546,270,320,351,270,271,540,317,271,539,270,320,906,270,320,351,270,271,477,409,536,201,699,515,32,201,619,497,371,14,639,28,201,2044,201,294,374,270,223,709,14,271,471,270,223,710,95,201,2045,2,201,1,279,201,557,281,287,875,328,223,50,1995,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":103,"total_tokens":126,"completion_tokens":23}','ede150016019c90f916f1d706b60ba23','716f3615de2589e859141028336631e9','c804ce198ec337e3dc762bdd1a09aece','','conversation');
INSERT INTO "turns" VALUES('turn_06610ab48e0a50ad3a643c','chatcmpl-d98acd1218df4f21b5074d3452b33030','session_06610ab48e0a50ad3a643c',NULL,0,'main','first','opening',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554846703880763053e+09,1.79554846725232648851e+09,200,0,'','cbe96160bf9b80c8081477ec432531ff','e260dceeedf6e9f7a7669881f0d6b0e0','Nice to meet you, **GBra hepril  fulloent thanksooI am able to answer many brief questions about countries, animals, words and numbers. 😊','','[]','[1224,309,551,298,14,313,41,1282,392,1115,223,1686,81,434,223,1816,81,81,43,919,1748,309,378,1014,968,443,358,851,14,673,14,752,355,807,16,324,2]','[-0.558131217956543,-0.000019073486328125,-0.000152587890625,-0.0000972747802734375,0.0,-0.09638690948486328,-0.08543014526367188,-3.455047607421875,-6.904253959655762,-4.222818374633789,-0.1864299774169922,-6.442870616912842,-0.17348480224609375,-5.14443302154541,-0.5593128204345703,-7.96367073059082,-0.1514425277709961,-0.2673377990722656,-4.074358940124512,-0.0074825286865234375,-0.10898780822753906,-0.0000324249267578125,-0.3914480209350586,-0.00058746337890625,-0.002124786376953125,-1.9073486328125e-6,-0.000011444091796875,-3.814697265625e-6,0.0,-0.0000400543212890625,0.0,-0.00009918212890625,-9.5367431640625e-6,-3.814697265625e-6,-0.000240325927734375,-5.432791709899902,-3.814697265625e-6]','stop',NULL,0,'[1,279,201,41,84,130,123,130,256,71,14,223,163,124,257,164,101,124,321,225,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":62,"completion_tokens":37}','6bbf05ab3e839b25a319e10d801c49f9','78914549614b03cd3955393865260eaa','ab2672ed4bd3033a83d3939255d23f9d','','conversation');
CREATE TABLE verdicts (
	verdict_id INTEGER NOT NULL, 
	turn_id VARCHAR(64) NOT NULL, 
	value INTEGER, 
	hint TEXT, 
	hint_is_reaction BOOLEAN NOT NULL, 
	source VARCHAR(256) NOT NULL, 
	confidence FLOAT NOT NULL, 
	detail TEXT NOT NULL, 
	created_at FLOAT NOT NULL, wishes TEXT DEFAULT '[]' NOT NULL, 
	CONSTRAINT pk_verdicts PRIMARY KEY (verdict_id), 
	CONSTRAINT fk_verdicts_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE
);
INSERT INTO "verdicts" VALUES(1,'turn_06610ab472d90d937fac88',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.989,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.989,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"],"reason":"pattern remove-form, confirmed by the classifier: complaint 0.99, praise 0.00"}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.79554846571329879763e+09,'["shorter","no_emoji"]');
INSERT INTO "verdicts" VALUES(2,'turn_06610ab4758530a912d6e1',1,NULL,1,'rule:thanks',0.988,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.988,"detail":{"patterns":["thanks"],"reason":"pattern thanks, confirmed by the classifier: complaint 0.01, praise 0.99"}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554846726177191732e+09,'[]');
INSERT INTO "verdicts" VALUES(3,'turn_06610ab47710c6623f523b',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.989,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.989,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"],"reason":"pattern remove-form, confirmed by the classifier: complaint 0.99, praise 0.00"}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.79554846728952360152e+09,'["shorter","no_emoji"]');
INSERT INTO "verdicts" VALUES(4,'turn_06610ab479c2980ac1a0b4',1,NULL,1,'rule:thanks',0.988,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.988,"detail":{"patterns":["thanks"],"reason":"pattern thanks, confirmed by the classifier: complaint 0.01, praise 0.99"}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554846729125213624e+09,'[]');
INSERT INTO "verdicts" VALUES(5,'turn_06610ab47bbf63f4fbba7f',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.989,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.989,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"],"reason":"pattern remove-form, confirmed by the classifier: complaint 0.99, praise 0.00"}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.7955484672916810513e+09,'["shorter","no_emoji"]');
INSERT INTO "verdicts" VALUES(6,'turn_06610ab47d04ac3a641fa5',1,NULL,1,'rule:thanks',0.988,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.988,"detail":{"patterns":["thanks"],"reason":"pattern thanks, confirmed by the classifier: complaint 0.01, praise 0.99"}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554846729268789296e+09,'[]');
INSERT INTO "verdicts" VALUES(7,'turn_06610ab480f4e61e02b666',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.989,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.989,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"],"reason":"pattern remove-form, confirmed by the classifier: complaint 0.99, praise 0.00"}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.79554846729301667215e+09,'["shorter","no_emoji"]');
INSERT INTO "verdicts" VALUES(8,'turn_06610ab4844a6a573a32d8',1,NULL,1,'rule:thanks',0.988,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.988,"detail":{"patterns":["thanks"],"reason":"pattern thanks, confirmed by the classifier: complaint 0.01, praise 0.99"}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.7955484673055181503e+09,'[]');
INSERT INTO "verdicts" VALUES(9,'turn_06610ab48510dc6905c74b',-1,'Answer in one word.',1,'feedback',1.0,'{"opinions":[{"source":"feedback","value":-1,"confidence":1.0,"hint":"Answer in one word."},{"source":"rule:thanks","value":1,"confidence":0.995,"detail":{"patterns":["thanks"],"reason":"pattern thanks, confirmed by the classifier: complaint 0.00, praise 1.00"}}],"follow_up":"Thanks, perfect!","follow_up_is_question":false}',1.79554846730600810049e+09,'[]');
INSERT INTO "verdicts" VALUES(10,'turn_06610ab4860abd040d7d50',1,NULL,1,'rule:thanks',0.988,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.988,"detail":{"patterns":["thanks"],"reason":"pattern thanks, confirmed by the classifier: complaint 0.01, praise 0.99"}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554846730785489083e+09,'[]');
CREATE TABLE wish_edits (
	edit_id INTEGER NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	turn_id VARCHAR(64) NOT NULL, 
	text TEXT, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_wish_edits PRIMARY KEY (edit_id), 
	CONSTRAINT fk_wish_edits_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE
);
CREATE INDEX ix_alias_moves_policy_move_id ON alias_moves (policy, move_id);
CREATE INDEX ix_steps_policy_started_at ON steps (policy, started_at);
CREATE INDEX ix_turns_completion_id ON turns (completion_id);
CREATE INDEX ix_turns_created_at ON turns (created_at);
CREATE INDEX ix_turns_scope_completion_key ON turns (scope, completion_key);
CREATE INDEX ix_turns_scope_reply_key ON turns (scope, reply_key);
CREATE INDEX ix_turns_scope_request_key ON turns (scope, request_key);
CREATE INDEX ix_turns_session_id_turn_index ON turns (session_id, turn_index);
CREATE INDEX ix_feedback_turn_id ON feedback (turn_id);
CREATE INDEX ix_lives_policy_trained_in_version ON lives (policy, trained_in_version);
CREATE INDEX ix_lives_stage_policy_since ON lives (stage, policy, since);
CREATE INDEX ix_verdicts_turn_id_verdict_id ON verdicts (turn_id, verdict_id);
CREATE VIEW trajectories AS
SELECT t.turn_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.policy, t.adapter_version,
  t.client, t.created_at,
  (
      WITH RECURSIVE walk(part, parent, message, depth) AS (
        SELECT CASE WHEN n.node = t.preamble_node THEN 0 ELSE 1 END, n.parent, n.message, n.depth
          FROM nodes n WHERE n.node = t.preamble_node
        UNION ALL
        SELECT 1, n.parent, n.message, n.depth FROM nodes n WHERE n.node = t.history_node
        UNION ALL
        SELECT walk.part, n.parent, n.message, n.depth FROM nodes n JOIN walk ON n.node = walk.parent
      )
      SELECT json_group_array(json(w.body)) FROM (
        SELECT walk.part AS part, walk.depth AS depth, m.body AS body
          FROM walk JOIN messages m ON m.hash = walk.message ORDER BY walk.part, walk.depth
      ) w) AS messages,
  t.completion, t.tool_calls, t.completion_token_ids, t.sampling_logprobs, t.finish_reason,
  (SELECT s.role FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_role,
  (SELECT s.text FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_text,
  (SELECT v.value FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict,
  (SELECT v.hint FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS hint,
  (SELECT v.source FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict_source,
  l.stage, l.drop_reason, l.trained_in_version
FROM turns t JOIN lives l ON l.turn_id = t.turn_id;
CREATE INDEX ix_turns_kind ON turns (kind);
CREATE INDEX ix_lives_drop_reason ON lives (drop_reason) WHERE drop_reason IS NOT NULL;
CREATE INDEX ix_wish_edits_policy_edit_id ON wish_edits (policy, edit_id);
CREATE INDEX ix_wish_edits_turn_id ON wish_edits (turn_id);
COMMIT;